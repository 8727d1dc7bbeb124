// Chunks of data: base64 in the file, bytes from a server, or arrays in memory.

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, i16: Int16Array, i32: Int32Array, f32: Float32Array };

/** Reads chunks that lie in the file, `first` being the number of the scene's first one. */
export function inlineLoader(first) {
  return {
    remote: null,
    async read(chunk) {
      const element = document.getElementById(`chunk-${first + chunk.id}`);
      if (!element) throw new Error(`the file has no chunk ${chunk.id}; was it cut short?`);
      return decodeNumbers(await inflateBytes(bytesOfBase64(element.textContent)), chunk);
    },
  };
}

/** Reads chunks of a trace on the server that sent the page. */
export function fetchLoader(base) {
  const request = async (path) => {
    const response = await fetch(`${base}/${path}`);
    if (!response.ok) throw new Error(await refusalMessage(response));
    return response.arrayBuffer();
  };
  return {
    remote: { floats: async (path) => new Float32Array(await request(path)) },
    async read(chunk) {
      return decodeNumbers(await inflateBytes(new Uint8Array(await request(`chunks/${chunk.id}`))), chunk);
    },
  };
}

/** What a server says about a request that it refused. */
export async function refusalMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** The bytes that a text of base64 stands for. */
export function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflateBytes(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Bytes whose planes lie one behind the other, as numbers; rows in multiples of a unit become floats. */
function decodeNumbers(planes, chunk) {
  if (chunk.dtype === "u8") return planes;
  const count = chunk.shape.reduce((product, size) => product * size, 1);
  if (chunk.dtype !== "rows") return new ARRAYS[chunk.dtype](joinedPlanes(planes, count));
  const numbers = new Int16Array(joinedPlanes(planes.subarray(0, 2 * count), count));
  const units = new Float32Array(joinedPlanes(planes.subarray(2 * count), chunk.shape[0]));
  const width = chunk.shape[1];
  return Float32Array.from(numbers, (number, i) => number * units[Math.floor(i / width)]);
}

function joinedPlanes(planes, count) {
  const width = planes.length / Math.max(1, count);
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane += 1) {
    const start = plane * count;
    for (let i = 0, at = plane; i < count; i += 1, at += width) bytes[at] = planes[start + i];
  }
  return bytes.buffer;
}

let halfTable = null;

/** 16-bit floats as 32-bit ones, by a table of all of them. */
export function floatsOfHalves(numbers) {
  halfTable ??= Float32Array.from({ length: 65536 }, (_, bits) => halfValue(bits));
  const floats = new Float32Array(numbers.length);
  for (let i = 0; i < numbers.length; i += 1) floats[i] = halfTable[numbers[i]];
  return floats;
}

function halfValue(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
