// What the types of heads mean, in a sentence each; the rules are those of regard.aggregate.report.

const WITH_SINK = ", with a sink";

export const HEAD_TYPES = {
  previous: "at least 40 % of the attention goes to the token just before",
  next: "at least 40 % of the attention goes to the token just after",
  self: "at least 40 % of the attention goes from a token to itself",
  induction: "at least 40 % goes to what followed earlier copies of the token, where tokens occur again",
  duplicate: "at least 40 % goes to earlier copies of the token, where tokens occur again",
  broad: "the attention is spread almost evenly over all tokens in sight",
  special: "at least 40 % goes to special tokens such as [CLS] or [SEP], less than half of that to the first token",
  sink: "one token receives at least 40 % of all attention, whoever looks",
  local: "at least 60 % of the attention stays within four tokens to either side",
  positional: "how far away a token is explains at least 60 % of the pattern",
  content: "few tokens are picked, and neither their distance nor one favourite explains which: it follows what they say",
  sharp: "few tokens are picked, where queries and keys are different texts and distance means nothing",
  mixed: "none of the other types",
};

/** A type with its meaning, as a tooltip; null where there is no type. */
export function typeTitle(type) {
  if (!type) return null;
  const meaning = HEAD_TYPES[headType(type)];
  const beside = hasSink(type) ? `what does not go to special tokens or one favourite, which take at least 40 %: ${meaning}` : meaning;
  return meaning ? `${type}: ${beside}` : type;
}

/** The type without the sink beside it. */
export function headType(label) {
  return label.replace(WITH_SINK, "");
}

/** Whether a head was judged by what does not go to a sink. */
export function hasSink(label) {
  return label.endsWith(WITH_SINK);
}
