r"""What a model that chapter 09 has trained writes after a prompt.

PYTHONPATH=09_language_model python docs/examples/language_model/generate.py \
    runs/09_language_model/model.safetensors "The gradient" [tokenizer.json]
"""

import re
import sys

import torch
from main import Model
from safetensors import safe_open

path, prompt, *tokenizer = sys.argv[1:]
file = safe_open(path, "pt")
width, layers, heads, key_heads, size = map(int, re.findall(r"\d+", file.metadata()["model"]))
weights = {name: file.get_tensor(name) for name in file.keys()}
# Of the head there may be more rows than tokens, so that ranks can divide it.
model = Model(len(weights["head.weight"]), width, layers, heads, key_heads)
model.load_state_dict(weights)

tokens = list(prompt.encode())  # bytes, unless there is a tokenizer
if tokenizer:
    from tokenizers import Tokenizer

    coder = Tokenizer.from_file(tokenizer[0])
    tokens = coder.encode(prompt, add_special_tokens=False).ids
context = int(re.search(r"--context (\d+)", file.metadata()["flags"])[1])
torch.manual_seed(0)
for _ in range(200):
    seen = torch.tensor([tokens[-context:]])
    with torch.no_grad():
        logits = model(seen, torch.arange(seen.shape[1]))[0, -1, :size]
    tokens.append(int(torch.multinomial((logits / 0.8).softmax(-1), 1)))
print(coder.decode(tokens) if tokenizer else bytes(tokens).decode(errors="replace"))
