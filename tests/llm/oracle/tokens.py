"""Write smollm2_tokens.json: the tokens of its texts by llama.cpp. Needs xllamacpp: python tokens.py MODEL.gguf."""

import json
import sys
import urllib.request
from pathlib import Path

import xllamacpp

PATH = Path(__file__).resolve().parent.parent / "smollm2_tokens.json"


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx = sys.argv[1], 256
    server = xllamacpp.Server(parameters)
    document = json.loads(PATH.read_text())
    for entry in document["texts"]:
        body = json.dumps({"content": entry["text"], "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/tokenize", body, {"Content-Type": "application/json"}
        )
        entry["ids"] = json.load(urllib.request.urlopen(request))["tokens"]
    rows = ",\n".join("  " + json.dumps(entry) for entry in document["texts"])
    PATH.write_text(f'{{"about": {json.dumps(document["about"])},\n "texts": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
