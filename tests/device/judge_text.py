"""judge_text.py IDS FILE - token ids of a device against those that the reference's arithmetic gave in FILE (`generate
--json --logprobs 3`), up to the first choice between tokens that are closer than the two arithmetics. One and two ranks of
the reference alone are 0.04 apart where tokens of this text are 0.05."""

import json
import sys

CLOSE = 0.1  # of two log probabilities


def main():
    got = json.loads(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as f:
        reply = json.load(f)
    want = reply["ids"]
    same = 0
    while same < min(len(got), len(want)) and got[same] == want[same]:
        same += 1
    print(f"tokens that equal those of the reference's arithmetic: {same} of {len(want)}")
    if same == len(want):
        return len(got) != len(want)
    if same == len(got):
        print("FAILED: the text is too short")
        return 1
    at = reply["logprobs"][same]
    of = {t["id"]: t["logprob"] for t in at["top"]}
    if got[same] not in of:
        print(f"FAILED: {got[same]} is none of the reference's likeliest, {sorted(of)}")
        return 1
    ahead = at["logprob"] - of[got[same]]
    print(f"{'' if ahead <= CLOSE else 'FAILED: '}there the reference has {want[same]} {ahead:.3f} ahead of {got[same]}")
    return ahead > CLOSE


sys.exit(main())
