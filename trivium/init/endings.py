"""Endings of files -> what they are: prose, source code, parts of something else, or what is not read."""

TOKENIZER = "tokenizer.json"
# Files beside a tokenizer.json, token files or a model, which are not text to train on.
BELONGS = frozenset(
    {
        TOKENIZER,
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "vocab.json",
        "merges.txt",
        "config.json",
        "generation_config.json",
        "manifest.json",
        "prepared.json",
        "metadata.json",
        "metadata.yaml",
        "metadata.yml",
        "shape.json",
        "dataset_info.json",
        "state.json",
    }
)
_TEXT = ".txt .text .md .markdown .rst .adoc .org .tex .html .htm .xml .wiki .pod .srt .log"
_CODE = (
    ".py .pyi .ipynb .js .mjs .jsx .ts .tsx .vue .c .h .cc .cpp .cxx .hpp .hh .cu .cuh .m .mm .java .kt .kts "
    ".scala .go .rs .rb .php .pl .pm .lua .r .jl .sh .bash .zsh .fish .ps1 .sql .swift .cs .fs .hs .ml .mli .ex "
    ".exs .erl .clj .el .lisp .scm .v .sv .vhd .vhdl .asm .s .f .f90 .pas .dart .nim .zig .proto .toml .yaml .yml "
    ".ini .cfg .cmake .css .scss .less .gradle .bat .vim .lean .thy .coq"
)
TEXT, CODE = frozenset(_TEXT.split()), frozenset(_CODE.split())
_ARCHIVE = "an archive: unpack it"
_PRESSED = "compressed in a form that is not read: unpack it, or use .gz or .zst"
_PAGES = "pages, not text: extract the text from them"
_TABLE = "a table: write it as JSONL or Parquet, with the text in one column"
NOT_READ = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".whl", ".jar"), _ARCHIVE),
    **dict.fromkeys((".bz2", ".xz", ".lz4", ".lzma", ".br"), _PRESSED),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".epub", ".rtf", ".ps", ".djvu"), _PAGES),
    **dict.fromkeys((".csv", ".tsv", ".xls", ".xlsx"), _TABLE),
    ".arrow": 'an Arrow file: a dataset that datasets saved is read with kind = "huggingface"',
    ".svg": "a picture",
    ".lock": "made by a tool, not written",
    ".map": "made by a tool, not written",
}
