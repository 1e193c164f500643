#!/usr/bin/env python3
"""What run_speed.sh measured against what has to hold, and the counters of kernels by op.

  judge_speed.py counters CSV PROFILE    of ncu --csv --page raw over `bench --profile --json`: a JSON line an op
  judge_speed.py judge SPEED_JSON SMALL  a line for each figure, pass or miss; exit code 1 if one is missing. SMALL gets
                                         these, and the tables that belong beside them, as JSON
"""
import csv
import json
import sys

BF16_TFLOPS = 790  # what a product of bf16 by the vendor's library does on an H200, 8192 a side


def counters(csv_path, profile_path):
    """ncu has a row a kernel in the order of launches; the profile says how many each op has behind a note of the clock."""
    with open(csv_path, encoding="utf-8", errors="replace") as f:
        lines = [line for line in f if line.startswith('"')]
    rows = [r for r in csv.DictReader(lines) if r.get("ID", "").isdigit()]
    with open(profile_path, encoding="utf-8", errors="replace") as f:
        alone = [json.loads(line)["alone"] for line in f if line.startswith("{")][-1]
    at = 0
    for op in alone:
        if at < len(rows) and "stamp_now" in rows[at]["Kernel Name"]:
            at += 1
        for row in rows[at:at + op["kernels"]]:
            yield dict(op=op["op"], what=op["what"], calls=op["calls"], **figures(row))
        at += op["kernels"]
    if at != len(rows):
        sys.exit(f"counters: {len(rows)} kernels profiled, {at} expected")


def number(text):
    return float(text.replace(",", "") or 0)


def figures(row):
    def of(name):
        return number(row[name])

    stalls = {}
    for key, value in row.items():
        if key and "issue_stalled_" in key and value:
            name = key.split("issue_stalled_")[1].split("_per_issue")[0]
            if name not in ("selected", "not_selected"):
                stalls[name] = number(value)
    top = sorted(stalls, key=stalls.get, reverse=True)[:3]
    return dict(kernel=row["Kernel Name"].split("(")[0], ns=of("gpu__time_duration.sum"),
                dram_share=round(of("dram__throughput.avg.pct_of_peak_sustained_elapsed"), 1), dram_bytes=of("dram__bytes_read.sum"),
                issue=round(of("smsp__issue_active.avg.pct_of_peak_sustained_active"), 1), registers=int(of("launch__registers_per_thread")),
                local=int(of("smsp__sass_inst_executed_op_local.sum")),
                stalls=[[name, round(stalls[name], 2)] for name in top])


class Judge:
    def __init__(self, lines):
        self.by_step = {}
        for line in lines:
            self.by_step.setdefault(line["step"], []).append(line["result"])
        self.lacking = 0
        self.figures = []

    def result(self, step):
        return self.by_step.get(step, [{}])[-1]

    def line(self, name, value, bound, most=True, unit=""):
        figure = {"figure": name, "value": value, "unit": unit.strip()}
        if bound is not None:
            figure["most" if most else "least"] = bound
        if value is None:
            self.lacking += 1
            figure["verdict"] = "none"
            print(f"none  {name}: not measured")
        else:
            holds = bound is None or (value <= bound if most else value >= bound)
            figure["value"] = round(value, 4)
            figure["verdict"] = "" if bound is None else "pass" if holds else "miss"
            aim = "" if bound is None else f", {'at most' if most else 'at least'} {bound:g}{unit}"
            print(f"{figure['verdict'] or '    '}  {name}: {value:.4g}{unit}{aim}")
        self.figures.append(figure)

    def op(self, name, has="", rows=1):
        return [k for k in self.result("full").get("kernels", []) if k["op"] == name and has in k["what"] and k["rows"] == rows]

    def one(self, name, has="", rows=1):
        found = self.op(name, has, rows)
        return max((k["us"] for k in found), default=None)

    def bench(self, name, rows=1):
        found = [b["us"] for b in self.by_step.get("bench", []) if b["op"] == name and b["rows"] == rows]
        return found[0] if found else None

    def share(self, k):
        full = self.result("full")
        decode = full["decode_gweights_s"]  # 0: nothing is decoded
        return max(k["bytes"] / full["copy_gbps"], k["weights"] / decode if decode else 0) / k["us"] / 1e3

    def dense(self):
        one = {k["what"]: k for name in ("matmul", "matmuls") for k in self.op(name, " exl3 ")}
        if not one:
            return self.line("EXL3 dense", None, None)
        for what, k in one.items():
            self.line(f"EXL3 {what} at 1 row, share of the limit", self.share(k), 0.85, most=False)
        for rows, bound in ((2, 1.10), (4, 1.25)):
            again = [k["us"] / one[k["what"]]["us"] for name in ("matmul", "matmuls") for k in self.op(name, " exl3 ", rows)
                     if k["what"] in one]
            self.line(f"EXL3 dense, {rows} rows to 1, the worst", max(again, default=None), bound)

    def windows(self):
        full = self.result("full")
        ms = {w["rows"]: w["window_us"] / 1e3 for w in full.get("windows", [])}
        idle = [x["idle"] for x in full.get("inside", []) if x["op"] == "all" and x["rows"] == 1]
        one = ms.get(1)
        self.line("window of 1 row", one, 5, unit=" ms")
        self.line("idle inside it", 100 * idle[0] if idle else None, 3, unit="%")
        self.line("window of 16 rows to 1", ms[16] / one if one and 16 in ms else None, 4)
        self.line("draft pass to the window", full["pass_us"] / 1e3 / one if one else None, 0.25)

    def prompts(self):
        found = {p["rows"]: p for p in self.result("prompts").get("prompts", [])}
        for rows in (512, 2048, 4096):
            us = found[rows]["prompt_us"] if rows in found else None
            self.line(f"prompt of {rows} rows", rows * 1e6 / us if us else None, None, unit=" tok/s")
        rate = found[4096]["dense_tflops"] if 4096 in found else None
        self.line(f"its dense products, share of {BF16_TFLOPS} TFLOP/s", rate / BF16_TFLOPS if rate else None, 0.30, most=False)

    def roofline(self):
        for step in ("roofline_six_to_full", "roofline_full_to_six"):
            off = [abs(w["us"] / w["known_us"] - 1) for w in self.result(step).get("windows", []) if "known_us" in w]
            self.line(f"{step}, furthest off", 100 * max(off) if off else None, 15, unit="%")

    def paper(self):
        gb10 = self.result("roofline_gb10_json")
        for w in gb10.get("windows", []):
            if "known_us" in w:
                what = "draft pass" if w is gb10["windows"][-1] else f"window of {w['rows']} rows"
                self.line(f"a GB10 on paper, {what} (published: {w['known_us'] / 1e3:g})", w["us"] / 1e3, None, unit=" ms")
        self.line("a GB10 on paper, exchanges", gb10.get("exchanges"), None)

    def spills(self):
        found = sorted(self.by_step.get("counters", []), key=lambda c: c["ns"] * c["calls"])[-5:]
        self.line("local memory in the five longest kernels, instructions", sum(c["local"] for c in found) if found else None, 0)

    def small(self):
        full = self.result("full")
        roofs = {step: [{k: w.get(k) for k in ("rows", "us", "known_us")} for w in self.result(step).get("windows", [])]
                 for step in ("roofline_six_to_full", "roofline_full_to_six", "roofline_gb10_json")}
        one = [dict(op=k["op"], what=k["what"], calls=k["calls"], us=round(k["us"], 2), plain_us=k.get("plain_us"), blas_us=k.get("blas_us"))
               for k in full.get("kernels", []) if k["rows"] == 1]
        return {"figures": self.figures, "windows": full.get("windows"), "pass_us": full.get("pass_us"), "alone_1_row": one,
                "inside": full.get("inside"), "prompts": self.result("prompts").get("prompts"),
                "counters": self.by_step.get("counters", []), "kernels": self.result("fit_six"), "roofline": roofs}

    def all(self):
        self.line("copy, read and written", self.result("full").get("copy_gbps"), None, unit=" GB/s")
        self.dense()
        moe = self.op("moe")
        self.line("experts at 1 row, share of the limit", self.share(moe[0]) if moe else None, 0.75, most=False)
        self.line("router with top-k", self.one("route"), 10, unit=" us")
        self.line("between sublayers (hc_site)", self.one("hc_site", " x "), 8, unit=" us")
        self.line("selection among 131,072", self.bench("select of 131072 entries"), 15, unit=" us")
        self.line("attention, 128 + 512 rows", self.one("attend", "128 + 512"), 10, unit=" us")
        self.windows()
        self.prompts()
        self.roofline()
        self.paper()
        self.spills()
        return self.lacking


def main(argv):
    if argv[1:2] == ["counters"] and len(argv) == 4:
        for line in counters(argv[2], argv[3]):
            print(json.dumps(line))
        return 0
    if argv[1:2] == ["judge"] and len(argv) == 4:
        with open(argv[2], encoding="utf-8") as f:
            judge = Judge([json.loads(line) for line in f if line.strip()])
        lacking = judge.all()
        with open(argv[3], "w", encoding="utf-8") as f:
            for key, value in judge.small().items():
                rows = value if isinstance(value, list) else [value]
                f.write("".join(json.dumps({key: row}) + "\n" for row in rows if row))
        return 1 if lacking else 0
    print(__doc__, file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv))
