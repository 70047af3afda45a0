#!/usr/bin/env python3
"""A mutator that asks a language model, for `eightfold evolve --mutator examples/mutate_with_llm.py`.

Any endpoint that speaks OpenAI's chat completions will do. Needs nothing but Python 3.8. From the environment:

  LLM_BASE_URL   such as https://api.openai.com/v1 or http://127.0.0.1:8000/v1
  LLM_MODEL      the model's name there
  LLM_API_KEY    the key; may be left out for a server of one's own
  LLM_PRICE      what a million tokens cost, read and written, such as 2.5,10; the answer's cost is 0 without it
  LLM_TIMEOUT    seconds for one request [default: 300]
  LLM_RETRIES    further requests after one that failed [default: 4]
  LLM_FIRST_WAIT seconds before the second request; before each further one twice as many [default: 1]

The prompt is the bundle's own. What was said is appended to transcript.jsonl in the search's folder, without the key.
`--dry-run` prints the prompt and asks nobody. Let the search wait long enough: --mutator-timeout 1800.
"""

import json
import os
import pathlib
import random
import re
import sys
import time
import urllib.error
import urllib.request

# Those that another try may mend: too many requests, and whatever happens to a server.
WORTH_ANOTHER_TRY = {408, 409, 425, 429, 500, 502, 503, 504, 529}
LONGEST_WAIT = 60.0
FIELDS = ("note", "edits", "files", "config")


def number(name, default):
    try:
        return float(os.environ.get(name) or default)
    except ValueError:
        sys.exit(f"{name} is no number")


def ask(messages):
    """The model's answer and what it counted; ends the program where there is none to be had."""
    base, model = os.environ.get("LLM_BASE_URL"), os.environ.get("LLM_MODEL")
    if not base or not model:
        sys.exit("set LLM_BASE_URL and LLM_MODEL")
    headers = {"Content-Type": "application/json"}
    if os.environ.get("LLM_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['LLM_API_KEY']}"
    body = json.dumps({"model": model, "messages": messages}).encode()
    request = urllib.request.Request(base.rstrip("/") + "/chat/completions", body, headers)
    tries = int(number("LLM_RETRIES", 4)) + 1
    pause = number("LLM_FIRST_WAIT", 1)
    for turn in range(tries):
        wait = None
        try:
            with urllib.request.urlopen(request, timeout=number("LLM_TIMEOUT", 300)) as response:
                answer = json.loads(response.read())
                return answer["choices"][0]["message"]["content"], answer.get("usage") or {}
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}: {error.read(300).decode(errors='replace')}"
            if error.code not in WORTH_ANOTHER_TRY:
                sys.exit(reason)
            wait = error.headers.get("Retry-After")
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            # No connection, no answer in time, or one that is not of the form.
            reason = f"{type(error).__name__}: {error}"
        if turn + 1 < tries:
            try:
                pause_now = float(wait)
            except (TypeError, ValueError):
                pause_now = pause * 2**turn * random.uniform(0.8, 1.2)
            print(f"{reason}; again in {pause_now:.1f} s", file=sys.stderr)
            time.sleep(min(pause_now, LONGEST_WAIT))
    sys.exit(f"no answer after {tries} requests: {reason}")


def extract(text):
    """The JSON object of an answer: the whole of it, or in a code block, or the first that begins in it."""
    blocks = re.findall(r"```[a-zA-Z]*\n(.*?)```", text, re.DOTALL)
    starts = [match.start() for match in re.finditer(r"\{", text)]
    for candidate in [text, *blocks, *(text[start:] for start in starts[:50])]:
        try:
            # Models put line ends into strings, which JSON does not.
            found, _ = json.JSONDecoder(strict=False).raw_decode(candidate.strip())
        except ValueError:
            continue
        if isinstance(found, dict) and any(found.get(field) for field in ("edits", "files", "config")):
            return {field: found[field] for field in FIELDS if found.get(field)}
    return None


def cost(usage):
    """By the price list; the model's tokens as they were counted."""
    prices = [float(price) for price in (os.environ.get("LLM_PRICE") or "0,0").split(",")]
    tokens = [usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0]
    return sum(price * count for price, count in zip(prices, tokens)) / 1e6


def keep(bundle, entry):
    if bundle.get("folder"):
        with open(pathlib.Path(bundle["folder"]) / "transcript.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"trial": bundle["trial"], "asked": bundle["asked"], **entry}) + "\n")


def main():
    bundle = json.load(sys.stdin)
    if bundle.get("version") != 2:
        sys.exit(f"the bundle has version {bundle.get('version')}, and this is for 2")
    if "--dry-run" in sys.argv[1:]:
        print(bundle["prompt"])
        return
    messages = [{"role": "user", "content": bundle["prompt"]}]
    paid = 0.0
    for _ in range(2):
        text, usage = ask(messages)
        paid += cost(usage)
        keep(bundle, {"messages": messages, "answer": text, "usage": usage})
        found = extract(text)
        if found:
            print(json.dumps({**found, "cost": paid}))
            return
        # Once more, with what was missing.
        more = "That holds no JSON object with edits, files or config. Answer with that object and nothing else."
        messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": more}]
    sys.exit("the model's answers hold no change")


if __name__ == "__main__":
    main()
