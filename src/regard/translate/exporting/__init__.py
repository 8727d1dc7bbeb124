"""A trained Transformer in the formats of other packages, which load it without regard.

| file             | what it is                                                     |
|------------------|----------------------------------------------------------------|
| `export.py`      | `export`: a checkpoint into a folder, in one of the `FORMATS`  |
| `exportable.py`  | what both formats can express of a translator                  |
| `ctranslate2.py` | the folder of a model of CTranslate2                           |
| `marian.py`      | the folder of a Marian model and tokenizer of transformers     |
"""

from regard.translate.exporting.export import FORMATS, export

__all__ = ["FORMATS", "export"]
