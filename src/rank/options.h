/* options - the command line: one table gives parsing, the list of what a command takes, and its
 * help. */
#ifndef TANDEM_RANK_OPTIONS_H
#define TANDEM_RANK_OPTIONS_H

#include "src/base/config.h"
#include "src/rank/lead.h"

#include <stdbool.h>

/* Bits of struct command_spec. */
enum option_group {
    OPT_CONFIG = 1 << 0, /* --config --set */
    OPT_PROMPT = 1 << 1, /* --prompt --prompt-file --markers */
    OPT_IDS = 1 << 2,
    OPT_REPLY = 1 << 3, /* --max-tokens, sampling, --stop, --draft */
    OPT_MANY = 1 << 4,  /* --jobs, prompts again, and what a request asks for beyond OPT_REPLY */
    OPT_NO_BOS = 1 << 5,
    OPT_SPECIAL = 1 << 6,
    OPT_JSON = 1 << 7,
    OPT_TOP = 1 << 8,
    OPT_PACK = 1 << 9, /* --ranks --rank --layout --experts --engram --mixes --extra --verify */
    OPT_GET = 1 << 10,
    OPT_PROMPTS = 1 << 11,
    OPT_OUT = 1 << 12,
    OPT_GBPS = 1 << 13,
    OPT_TO = 1 << 14,
    OPT_AGAINST = 1 << 15, /* --against --prompts; a prompt may be missing then */
    OPT_GROUP = 1 << 16,   /* runs ranks: settings must fit together; --get asks for one of them */
    OPT_BENCH = 1 << 17,   /* --compare --transport --only --max-tokens --draft */
    OPT_MEET = 1 << 18,
    OPT_ROOF = 1 << 19, /* --measured --fit */
    OPT_GATE = 1 << 20  /* --full --only --tokens --as-set, and --prompts of its own */
};

struct command_spec {
    const char *name, *args, *help;
    unsigned options; /* enum option_group */
    int words;        /* arguments that are no options, */
    int more;         /* and how many may follow these */
};

enum { MAX_TOKENS_DEFAULT = 128, TOP_DEFAULT = 5, TOP_MOST = 1000, WORDS_MAX = 8, EXTRA_MAX = 16 };
enum { GIVEN_MAX = 64, LINE_BIASES_MAX = 64, REPLIES_MAX = 64 };

enum given_as { GIVEN_TEXT, GIVEN_TEXT_FILE, GIVEN_IDS_FILE, GIVEN_JOBS_FILE };

/* A prompt, or a file of requests. */
struct given {
    enum given_as as;
    const char *what; /* the text, or the path */
};

struct options {
    struct config cfg;
    bool help;
    struct given given[GIVEN_MAX]; /* in the line's order */
    int givens;
    bool markers, no_bos, special, json, verify, compare, transport, meet, windows, kernels,
        profile;
    int max_tokens, top;
    struct sampler sampler;
    bool seeded;
    const char *stop[STOPS_MAX];
    int stops;
    int32_t stop_id[STOP_IDS_MAX];
    int stop_ids;
    struct logit_bias bias[LINE_BIASES_MAX];
    int replies;               /* of each request */
    int pack_ranks, pack_rank; /* pack_rank -1: all */
    int layouts;               /* enum pack_layouts */
    bool whole_experts, link_rows, round_mixes;
    const char *extra[EXTRA_MAX];
    int extras;
    double gbps;
    const char *fit, *measured;
    const char *to, *against;
    const char *get, *prompts;
    bool full;
    const char *only; /* names of gates, or of a link; NULL: all */
    int gate_tokens;  /* the longest reply, 0: as the size has it */
    bool as_set;      /* numerics and ranks of the settings alone */
    const char *out;
    const char *word[WORDS_MAX]; /* NULL behind the last */
};

/* options_parse - argv[0] is the command's name. Messages go to the log.
 * result   an exit code: 64 for the line itself, 66 and 78 for what --config and --set say
 * owns     options_free gives back the config, in any case */
int options_parse(const struct command_spec *s, int argc, char **argv, struct options *o);
void options_free(struct options *o);

/* seed_parse - 0 .. 2^64 - 1, decimal or 0x.   errors   -EINVAL, unlogged */
int seed_parse(const char *text, uint64_t *out);

/* options_help - what a command takes, on stdout. */
void options_help(const struct command_spec *s);

#endif
