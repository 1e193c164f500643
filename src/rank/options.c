/* options.c owns the table of options; what they mean for a command is in cmd_*.c. */
#include "src/rank/options.h"

#include "src/base/log.h"
#include "src/model/pack.h"
#include "src/rank/exit_code.h"
#include "src/verify/sampler.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_id {
    ID_HELP = 256,
    ID_CONFIG,
    ID_SET,
    ID_PROMPT,
    ID_PROMPT_FILE,
    ID_MARKERS,
    ID_NO_BOS,
    ID_IDS,
    ID_JOBS,
    ID_MAX_TOKENS,
    ID_TEMPERATURE,
    ID_TOP_K,
    ID_TOP_P,
    ID_MIN_P,
    ID_SEED,
    ID_STOP,
    ID_STOP_ID,
    ID_REPETITION,
    ID_FREQUENCY,
    ID_PRESENCE,
    ID_MIN_TOKENS,
    ID_BIAS,
    ID_BAN,
    ID_LOGPROBS,
    ID_REPLIES,
    ID_DRAFT,
    ID_TOP,
    ID_RANKS,
    ID_RANK,
    ID_VERIFY,
    ID_LAYOUT,
    ID_EXPERTS,
    ID_MIXES,
    ID_ENGRAM,
    ID_EXTRA,
    ID_GBPS,
    ID_FIT,
    ID_MEASURED,
    ID_TO,
    ID_AGAINST,
    ID_GET,
    ID_PROMPTS,
    ID_SPECIAL,
    ID_OUT,
    ID_COMPARE,
    ID_TRANSPORT,
    ID_MEET,
    ID_WINDOW,
    ID_KERNELS,
    ID_PROFILE,
    ID_FULL,
    ID_ONLY,
    ID_TOKENS,
    ID_AS_SET,
    ID_JSON
};

#define GBPS_DEFAULT 230.0

struct entry {
    const char *name;
    enum option_id id;
    unsigned group;    /* 0: every command */
    const char *value; /* NULL: takes none */
    const char *help;
};

static const struct entry entries[] = {
    { "config", ID_CONFIG, OPT_CONFIG, "FILE", "settings, one `key = value` a line" },
    { "set", ID_SET, OPT_CONFIG, "KEY=VALUE", "one setting; may be repeated, the last one wins" },
    { "prompt", ID_PROMPT, OPT_PROMPT, "TEXT", "the text; an empty one is the begin token alone" },
    { "prompt-file", ID_PROMPT_FILE, OPT_PROMPT, "FILE", "the text is the contents of FILE" },
    { "markers", ID_MARKERS, OPT_PROMPT, NULL,
      "special tokens that the text spells out are special tokens, not plain text" },
    { "no-bos", ID_NO_BOS, OPT_NO_BOS, NULL, "do not put the begin token in front" },
    { "ids", ID_IDS, OPT_IDS, "FILE", "token ids, separated by blanks, taken as they are" },
    { "jobs", ID_JOBS, OPT_MANY, "FILE",
      "requests, one JSON object a line; prompts and jobs may be repeated and run together" },
    { "max-tokens", ID_MAX_TOKENS, OPT_REPLY | OPT_BENCH, "N",
      "longest reply; 0 is an empty one (128)" },
    { "temperature", ID_TEMPERATURE, OPT_REPLY, "T", "0 takes the most likely token (0)" },
    { "top-k", ID_TOP_K, OPT_REPLY, "K", "sample from the K most likely; 0 is off (0)" },
    { "top-p", ID_TOP_P, OPT_REPLY, "P",
      "sample from the likeliest tokens whose probabilities add up to P; 1 is off (1)" },
    { "min-p", ID_MIN_P, OPT_REPLY, "P",
      "sample from tokens at least P times as probable as the likeliest; 0 is off (0)" },
    { "seed", ID_SEED, OPT_REPLY, "S",
      "seed of the random draws; without it one is drawn and logged" },
    { "stop", ID_STOP, OPT_REPLY, "TEXT", "end before this text; may be repeated" },
    { "repetition-penalty", ID_REPETITION, OPT_REPLY, "R",
      "divides logits above 0 of tokens that have occurred, multiplies others; 1 is off (1)" },
    { "frequency-penalty", ID_FREQUENCY, OPT_REPLY, "F",
      "subtracted from a token's logit for each time that it is in the reply (0)" },
    { "presence-penalty", ID_PRESENCE, OPT_REPLY, "P",
      "subtracted from the logit of every token that is in the reply (0)" },
    { "stop-id", ID_STOP_ID, OPT_MANY, "ID", "a token that ends the reply; may be repeated" },
    { "min-tokens", ID_MIN_TOKENS, OPT_MANY, "N", "no token ends the reply before it has N (0)" },
    { "logit-bias", ID_BIAS, OPT_MANY, "ID=B", "added to the logit of a token; may be repeated" },
    { "ban", ID_BAN, OPT_MANY, "ID", "a token that cannot be chosen; may be repeated" },
    { "logprobs", ID_LOGPROBS, OPT_MANY, "N",
      "with --json: log probability of each token, and the N likeliest with theirs" },
    { "replies", ID_REPLIES, OPT_MANY, "N", "of each request, with seeds of their own (1)" },
    { "draft", ID_DRAFT, OPT_REPLY | OPT_BENCH, "NAME",
      "auto, none, ngram, dspark or mtp, as --set draft=NAME" },
    { "top", ID_TOP, OPT_TOP, "N", "how many of the largest logits to print, at most 1000 (5)" },
    { "ranks", ID_RANKS, OPT_PACK, "N", "how many ranks share the model (1)" },
    { "rank", ID_RANK, OPT_PACK, "R", "only this rank's pack" },
    { "layout", ID_LAYOUT, OPT_PACK, "cpu|cuda|both",
      "for which backends packs are laid out (cpu)" },
    { "experts", ID_EXPERTS, OPT_PACK, "width|whole", "how experts are shared out (width)" },
    { "engram", ID_ENGRAM, OPT_PACK, "copy|link",
      "n-gram rows: into the packs, or left where they are (copy)" },
    { "mixes", ID_MIXES, OPT_PACK, "stored|bf16",
      "weights that mix hyper-connections' streams: as they are stored, or rounded to bf16, which "
      "is lossy (stored)" },
    { "extra", ID_EXTRA, OPT_PACK, "FILE",
      "weights that MODEL lacks, such as Engram shards; may be repeated" },
    { "verify", ID_VERIFY, OPT_PACK, NULL, "read the packs in OUT again and compare every digest" },
    { "gbps", ID_GBPS, OPT_GBPS, "G", "memory speed that the floor is computed for (230)" },
    { "measured", ID_MEASURED, OPT_ROOF, "FILE",
      "beside what bench --window --json printed, instead of what DEVICE knows" },
    { "fit", ID_FIT, OPT_ROOF, "FILE",
      "print KERNELS as bench --window --kernels --json has measured them on PACK and DEVICE" },
    { "to", ID_TO, OPT_TO, "FORMAT",
      "fp8 (blocks of 32), fp8-128, mxfp4, nvfp4 (names of ModelOpt), nvfp4-ct (of "
      "compressed-tensors) or fp8-mxfp4 (experts mxfp4, the rest fp8, as released); must be "
      "given" },
    { "against", ID_AGAINST, OPT_AGAINST, "MODEL",
      "score prompts with both, print how often they choose the same token" },
    { "get", ID_GET, OPT_GET | OPT_GROUP, "KEY",
      "print the value of one setting and do nothing else" },
    { "prompts", ID_PROMPTS, OPT_PROMPTS | OPT_AGAINST, "FOLDER",
      "prompts, one a file *.txt (configs/demo, for bench configs/bench)" },
    { "compare", ID_COMPARE, OPT_BENCH, NULL,
      "measure nothing: print A.json and B.json side by side" },
    { "transport", ID_TRANSPORT, OPT_BENCH, NULL,
      "measure the link of the config: exchange and mailbox, no model" },
    { "only", ID_ONLY, OPT_BENCH, "LINK", "with --transport: loop, shm, tcp or rdma alone" },
    { "meet", ID_MEET, OPT_MEET, NULL,
      "send the largest message over the link to the other ranks, which do the same meanwhile" },
    { "window", ID_WINDOW, OPT_BENCH, NULL,
      "measure the first rank's device, alone: windows of 1 to 16 rows, and each op inside" },
    { "kernels", ID_KERNELS, OPT_BENCH, NULL,
      "measure the first rank's device, alone: every op of a window, with cold caches" },
    { "profile", ID_PROFILE, OPT_BENCH, NULL,
      "queue every op of its one-row window that reads weights or states once, for a profiler" },
    { "prompts", ID_PROMPTS, OPT_GATE, "FOLDER", "texts, one a file *.txt (configs/gate)" },
    { "full", ID_FULL, OPT_GATE, NULL, "long replies, every case; without it, a sample of them" },
    { "only", ID_ONLY, OPT_GATE, "G1,...", "these gates; soak is run only if it is named" },
    { "tokens", ID_TOKENS, OPT_GATE, "N", "the longest reply; for large models" },
    { "as-set", ID_AS_SET, OPT_GATE, NULL, "numerics and ranks of the settings, and no others" },
    { "special", ID_SPECIAL, OPT_SPECIAL, NULL, "print special tokens too" },
    { "out", ID_OUT, OPT_OUT, "FILE", "where the page goes (report.html)" },
    { "json", ID_JSON, OPT_JSON, NULL, "print JSON" },
    { "help", ID_HELP, 0, NULL, "print this" },
};

#define ENTRIES (sizeof(entries) / sizeof(entries[0]))

static bool takes(const struct command_spec *s, const struct entry *e)
{
    return e->group == 0 || (s->options & e->group);
}

void options_help(const struct command_spec *s)
{
    printf("usage: tandem %s [OPTION]...%s%s\n%s\n\noptions, with defaults in brackets:\n", s->name,
           s->args[0] ? " " : "", s->args, s->help);
    for (size_t i = 0; i < ENTRIES; i++) {
        char left[64];

        if (!takes(s, &entries[i]))
            continue;
        snprintf(left, sizeof(left), "--%s%s%s", entries[i].name, entries[i].value ? " " : "",
                 entries[i].value ? entries[i].value : "");
        printf("  %-22s %s\n", left, entries[i].help);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static int wrong(const char *option, const char *value, const char *want)
{
    fail(-EINVAL, "--%s: want %s, got \"%s\"", option, want, value);
    return CODE_USAGE;
}

static int parse_int(const char *option, const char *value, int lo, int hi, int *out)
{
    char want[64], *end;
    long v;

    errno = 0;
    v = strtol(value, &end, 10);
    if (end == value || *end || errno || isspace((unsigned char)value[0]) || v < lo || v > hi) {
        snprintf(want, sizeof(want), "a whole number in %d .. %d", lo, hi);
        return wrong(option, value, want);
    }
    *out = (int)v;
    return 0;
}

int seed_parse(const char *text, uint64_t *out)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 0);
    if (!isdigit((unsigned char)text[0]) || *end || errno)
        return -EINVAL;
    *out = v;
    return 0;
}

static int parse_seed(const char *value, uint64_t *out)
{
    return seed_parse(value, out) < 0 ? wrong("seed", value, "a whole number in 0 .. 2^64 - 1") : 0;
}

static int parse_real(const char *option, const char *value, double *out)
{
    char *end;
    double v;

    errno = 0;
    v = strtod(value, &end);
    if (end == value || *end || isspace((unsigned char)value[0]))
        return wrong(option, value, "a number");
    *out = v;
    return 0;
}

static int parse_stop(struct options *o, const char *value)
{
    if (o->stops == STOPS_MAX) {
        fail(-EINVAL, "--stop: more than %d", STOPS_MAX);
        return CODE_USAGE;
    }
    if (stop_check(value) < 0)
        return CODE_USAGE;
    o->stop[o->stops++] = value;
    return 0;
}

static int parse_draft(struct options *o, const char *value)
{
    char setting[64];

    snprintf(setting, sizeof(setting), "draft=%s", value);
    return config_set(&o->cfg, setting) < 0 ? CODE_USAGE : 0;
}

static int parse_choice(const char *option, const char *value, const char *const *names, int n,
                        const char *want, int *out)
{
    for (int i = 0; i < n; i++)
        if (strcmp(value, names[i]) == 0) {
            *out = i;
            return 0;
        }
    return wrong(option, value, want);
}

static int parse_layout(struct options *o, const char *value)
{
    static const char *const names[] = { "cpu", "cuda", "both" };
    static const int layouts[] = { PACK_CPU, PACK_DEVICE, PACK_BOTH };
    int i, code = parse_choice("layout", value, names, 3, "cpu, cuda or both", &i);

    if (code == 0)
        o->layouts = layouts[i];
    return code;
}

static int parse_experts(struct options *o, const char *value)
{
    static const char *const names[] = { "width", "whole" };
    int i, code = parse_choice("experts", value, names, 2, "width or whole", &i);

    if (code == 0)
        o->whole_experts = i == 1;
    return code;
}

static int parse_engram(struct options *o, const char *value)
{
    static const char *const names[] = { "copy", "link" };
    int i, code = parse_choice("engram", value, names, 2, "copy or link", &i);

    if (code == 0)
        o->link_rows = i == 1;
    return code;
}

static int parse_mixes(struct options *o, const char *value)
{
    static const char *const names[] = { "stored", "bf16" };
    int i, code = parse_choice("mixes", value, names, 2, "stored or bf16", &i);

    if (code == 0)
        o->round_mixes = i == 1;
    return code;
}

static int parse_extra(struct options *o, const char *value)
{
    if (o->extras == EXTRA_MAX) {
        fail(-EINVAL, "--extra: more than %d", EXTRA_MAX);
        return CODE_USAGE;
    }
    o->extra[o->extras++] = value;
    return 0;
}

static int parse_gbps(struct options *o, const char *value)
{
    int code = parse_real("gbps", value, &o->gbps);

    return code == 0 && !(o->gbps > 0 && o->gbps < 1e9)
               ? wrong("gbps", value, "a number above 0 and below 1e9")
               : code;
}

static int parse_given(struct options *o, const char *option, enum given_as as, const char *what)
{
    if (o->givens == GIVEN_MAX) {
        fail(-EINVAL, "--%s: more than %d prompts", option, GIVEN_MAX);
        return CODE_USAGE;
    }
    o->given[o->givens++] = (struct given){ .as = as, .what = what };
    return 0;
}

static int parse_stop_id(struct options *o, const char *value)
{
    if (o->stop_ids == STOP_IDS_MAX) {
        fail(-EINVAL, "--stop-id: more than %d", STOP_IDS_MAX);
        return CODE_USAGE;
    }
    return parse_int("stop-id", value, 0, INT32_MAX, &o->stop_id[o->stop_ids++]);
}

static int add_bias(struct options *o, const char *option, int id, double add)
{
    if (o->sampler.biases == LINE_BIASES_MAX) {
        fail(-EINVAL, "--%s: more than %d biases and bans; a file of jobs takes %d", option,
             LINE_BIASES_MAX, LOGIT_BIASES_MAX);
        return CODE_USAGE;
    }
    o->bias[o->sampler.biases++] = (struct logit_bias){ .id = id, .add = (float)add };
    return 0;
}

static int parse_bias(struct options *o, const char *value)
{
    const char *eq = strchr(value, '=');
    char text[16] = "";
    double add = 0;
    int id = 0, code;

    if (!eq || eq - value >= (ptrdiff_t)sizeof(text))
        return wrong("logit-bias", value, "ID=B");
    memcpy(text, value, (size_t)(eq - value));
    code = parse_int("logit-bias", text, 0, INT32_MAX, &id);
    if (code == 0)
        code = parse_real("logit-bias", eq + 1, &add);
    return code ? code : add_bias(o, "logit-bias", id, add);
}

static int parse_ban(struct options *o, const char *value)
{
    int id, code = parse_int("ban", value, 0, INT32_MAX, &id);

    return code ? code : add_bias(o, "ban", id, -INFINITY);
}

static int parse_logprobs(struct options *o, const char *value)
{
    int n = 0, code = parse_int("logprobs", value, 0, LOGPROBS_MAX, &n);

    o->sampler.logprobs = n + 1;
    return code;
}

static int read_config(struct options *o, const char *path)
{
    return exit_code_of(STEP_CONFIG, config_read(&o->cfg, path));
}

/* ---- the line -------------------------------------------------------------------------------- */

static int set_flag(bool *flag)
{
    *flag = true;
    return 0;
}

static int set_text(const char **text, const char *value)
{
    *text = value;
    return 0;
}

/* No default: the compiler names an option that is missing. */
static int apply(struct options *o, const struct entry *e, const char *value)
{
    switch (e->id) {
    case ID_HELP:
        return set_flag(&o->help);
    case ID_CONFIG:
        return read_config(o, value);
    case ID_SET:
        return exit_code_of(STEP_CONFIG, config_set(&o->cfg, value));
    case ID_PROMPT:
        return parse_given(o, e->name, GIVEN_TEXT, value);
    case ID_PROMPT_FILE:
        return parse_given(o, e->name, GIVEN_TEXT_FILE, value);
    case ID_MARKERS:
        return set_flag(&o->markers);
    case ID_NO_BOS:
        return set_flag(&o->no_bos);
    case ID_IDS:
        return parse_given(o, e->name, GIVEN_IDS_FILE, value);
    case ID_JOBS:
        return parse_given(o, e->name, GIVEN_JOBS_FILE, value);
    case ID_MAX_TOKENS:
        return parse_int(e->name, value, 0, INT32_MAX, &o->max_tokens);
    case ID_TEMPERATURE:
        return parse_real(e->name, value, &o->sampler.temperature);
    case ID_TOP_K:
        return parse_int(e->name, value, 0, INT32_MAX, &o->sampler.top_k);
    case ID_TOP_P:
        return parse_real(e->name, value, &o->sampler.top_p);
    case ID_MIN_P:
        return parse_real(e->name, value, &o->sampler.min_p);
    case ID_SEED:
        o->seeded = true;
        return parse_seed(value, &o->sampler.seed);
    case ID_STOP:
        return parse_stop(o, value);
    case ID_STOP_ID:
        return parse_stop_id(o, value);
    case ID_REPETITION:
        return parse_real(e->name, value, &o->sampler.repetition);
    case ID_FREQUENCY:
        return parse_real(e->name, value, &o->sampler.frequency);
    case ID_PRESENCE:
        return parse_real(e->name, value, &o->sampler.presence);
    case ID_MIN_TOKENS:
        return parse_int(e->name, value, 0, INT32_MAX, &o->sampler.min_tokens);
    case ID_BIAS:
        return parse_bias(o, value);
    case ID_BAN:
        return parse_ban(o, value);
    case ID_LOGPROBS:
        return parse_logprobs(o, value);
    case ID_REPLIES:
        return parse_int(e->name, value, 1, REPLIES_MAX, &o->replies);
    case ID_DRAFT:
        return parse_draft(o, value);
    case ID_TOP:
        return parse_int(e->name, value, 1, TOP_MOST, &o->top);
    case ID_RANKS:
        return parse_int(e->name, value, 1, RANKS_MAX, &o->pack_ranks);
    case ID_RANK:
        return parse_int(e->name, value, 0, RANKS_MAX - 1, &o->pack_rank);
    case ID_VERIFY:
        return set_flag(&o->verify);
    case ID_LAYOUT:
        return parse_layout(o, value);
    case ID_EXPERTS:
        return parse_experts(o, value);
    case ID_MIXES:
        return parse_mixes(o, value);
    case ID_ENGRAM:
        return parse_engram(o, value);
    case ID_EXTRA:
        return parse_extra(o, value);
    case ID_GBPS:
        return parse_gbps(o, value);
    case ID_FIT:
        return set_text(&o->fit, value);
    case ID_MEASURED:
        return set_text(&o->measured, value);
    case ID_TO:
        return set_text(&o->to, value);
    case ID_AGAINST:
        return set_text(&o->against, value);
    case ID_GET:
        return set_text(&o->get, value);
    case ID_PROMPTS:
        return set_text(&o->prompts, value);
    case ID_SPECIAL:
        return set_flag(&o->special);
    case ID_OUT:
        return set_text(&o->out, value);
    case ID_COMPARE:
        return set_flag(&o->compare);
    case ID_TRANSPORT:
        return set_flag(&o->transport);
    case ID_MEET:
        return set_flag(&o->meet);
    case ID_WINDOW:
        return set_flag(&o->windows);
    case ID_KERNELS:
        return set_flag(&o->kernels);
    case ID_PROFILE:
        return set_flag(&o->profile);
    case ID_FULL:
        return set_flag(&o->full);
    case ID_ONLY:
        return set_text(&o->only, value);
    case ID_TOKENS:
        return parse_int(e->name, value, 4, INT32_MAX, &o->gate_tokens);
    case ID_AS_SET:
        return set_flag(&o->as_set);
    case ID_JSON:
        return set_flag(&o->json);
    }
    return CODE_USAGE;
}

static int usage(const struct command_spec *s, const char *option)
{
    fail(-EINVAL, "%s: option %s is unknown or lacks its value; see tandem %s --help", s->name,
         option, s->name);
    return CODE_USAGE;
}

/* What must and must not come together. */
static int check_line(const struct command_spec *s, struct options *o, int words)
{
    bool wants = s->options & (OPT_PROMPT | OPT_IDS);

    if (s->options & OPT_AGAINST && o->prompts && !o->against) {
        fail(-EINVAL, "%s: --prompts wants --against", s->name);
        return CODE_USAGE;
    }

    if (words < s->words || words > s->words + s->more) {
        char most[32] = "", first[80] = "";

        if (s->more)
            snprintf(most, sizeof(most), " to %d", s->words + s->more);
        if (s->words == 0 && s->more == 0)
            snprintf(first, sizeof(first), ", \"%.32s\"%s", o->word[0],
                     s->options & OPT_PROMPT ? " (a text with blanks needs quotes)" : "");
        fail(-EINVAL, "%s: wants %d%s argument%s besides options, got %d%s; see tandem %s --help",
             s->name, s->words, most, s->words == 1 && !s->more ? "" : "s", words, first, s->name);
        return CODE_USAGE;
    }
    if (wants && !(o->against && o->givens == 0) &&
        (s->options & OPT_MANY ? o->givens == 0 : o->givens != 1)) {
        fail(-EINVAL, "%s: wants one of%s%s%s, got %d", s->name,
             s->options & OPT_PROMPT ? " --prompt, --prompt-file" : "",
             s->options & OPT_IDS ? (s->options & OPT_PROMPT ? ", --ids" : " --ids") : "",
             s->options & OPT_MANY ? ", --jobs" : "", o->givens);
        return CODE_USAGE;
    }
    if (sampler_check(&o->sampler) < 0 ||
        sampler_check_biases(o->bias, o->sampler.biases, INT32_MAX) < 0)
        return CODE_USAGE;
    if (o->pack_rank >= o->pack_ranks) {
        fail(-EINVAL, "--rank: %d of %d", o->pack_rank, o->pack_ranks);
        return CODE_USAGE;
    }
    return 0;
}

int options_parse(const struct command_spec *s, int argc, char **argv, struct options *o)
{
    struct option list[ENTRIES + 1] = { 0 };
    const struct entry *of[ENTRIES];
    int n = 0, c, at, code = 0;

    *o = (struct options){ .max_tokens = MAX_TOKENS_DEFAULT,
                           .top = TOP_DEFAULT,
                           .replies = 1,
                           .pack_ranks = 1,
                           .pack_rank = -1,
                           .layouts = PACK_CPU,
                           .gbps = GBPS_DEFAULT,
                           .out = "report.html" };
    sampler_default(&o->sampler);
    if (config_init(&o->cfg) < 0)
        return CODE_RESOURCE;
    for (size_t i = 0; i < ENTRIES; i++) {
        if (!takes(s, &entries[i]))
            continue;
        of[n] = &entries[i];
        list[n++] = (struct option){ entries[i].name,
                                     entries[i].value ? required_argument : no_argument, NULL, 0 };
    }
    opterr = 0;
    optind = 1;
    while (code == 0 && (c = getopt_long(argc, argv, "", list, &at)) != -1)
        code = c == 0 ? apply(o, of[at], optarg) : usage(s, argv[optind - 1]);
    if (code != 0 || o->help)
        return code;
    for (int i = 0; i < WORDS_MAX && optind + i < argc; i++)
        o->word[i] = argv[optind + i];
    code = check_line(s, o, argc - optind);
    if (!o->prompts)
        o->prompts = s->options & OPT_BENCH  ? "configs/bench"
                     : s->options & OPT_GATE ? "configs/gate"
                                             : "configs/demo";
    /* Whoever prints settings wants to see them before they fit together. */
    if (code != 0 || o->get || (s->options & OPT_GET))
        return code;
    return exit_code_of(STEP_CONFIG, s->options & OPT_GROUP ? config_check(&o->cfg)
                                                            : config_check_paths(&o->cfg));
}

void options_free(struct options *o)
{
    config_free(&o->cfg);
}
