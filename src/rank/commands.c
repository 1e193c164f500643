/* commands.c owns the list of commands. */
#include "src/rank/commands.h"

#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
    { { "generate", "",
        "Continue prompts, several at once. One reply goes to stdout as it comes, several in the "
        "order of their prompts; --json prints one object a reply when it is done.",
        OPT_CONFIG | OPT_PROMPT | OPT_NO_BOS | OPT_IDS | OPT_REPLY | OPT_JSON | OPT_GROUP |
            OPT_MANY,
        0 },
      cmd_generate },
    { { "score", "",
        "Run known tokens and print one JSON object for each position: the token's id, the logprob "
        "of the next token, the largest logits.",
        OPT_CONFIG | OPT_PROMPT | OPT_NO_BOS | OPT_IDS | OPT_TOP | OPT_JSON | OPT_AGAINST |
            OPT_GROUP,
        0 },
      cmd_score },
    { { "tokenize", "", "Print the token ids of a text.",
        OPT_CONFIG | OPT_PROMPT | OPT_NO_BOS | OPT_JSON, 0 },
      cmd_tokenize },
    { { "detokenize", "", "Print the text of token ids.",
        OPT_CONFIG | OPT_IDS | OPT_SPECIAL | OPT_JSON, 0 },
      cmd_detokenize },
    { { "pack", "MODEL OUT",
        "Write OUT/rank<r>.pack of a checkpoint folder. With --verify, packs that are in OUT stay, "
        "and all are read and compared.",
        OPT_PACK, 2 },
      cmd_pack },
    { { "inspect", "PACK",
        "List the weights of a pack, and what a window of one row reads of them.", OPT_GBPS, 1 },
      cmd_inspect },
    { { "convert", "MODEL OUT",
        "Write a checkpoint folder OUT, where none is yet, with the weights of MODEL in another "
        "format.",
        OPT_TO, 2 },
      cmd_convert },
    { { "report", "LOG...",
        "Read round logs, rank<r>.jsonl or folders of them: tables here, and a page with plots.",
        OPT_OUT, 1, WORDS_MAX - 1 },
      cmd_report },
    { { "preflight", "[FACTS...]",
        "Print the facts of this machine that matter to a group. Given files with the facts of "
        "every rank: a table of them, a verdict, and what has to change. launch.sh preflight does "
        "both.",
        OPT_CONFIG | OPT_GROUP | OPT_MEET, 0, WORDS_MAX },
      cmd_preflight },
    { { "config", "", "Print every setting: key, default, meaning, value in force.",
        OPT_CONFIG | OPT_GET, 0 },
      cmd_config },
    { { "demo", "",
        "Decode the prompts of a folder, drafted and then serially, compare, and print a table.",
        OPT_CONFIG | OPT_REPLY | OPT_PROMPTS | OPT_GROUP, 0 },
      cmd_demo },
    { { "bench", "[A.json B.json]",
        "Measure decoding of texts by kind, at 1, 2 and 4 streams, greedy and at temperature 0.7, "
        "and replay every reply serially and alone.",
        OPT_CONFIG | OPT_PROMPTS | OPT_JSON | OPT_GROUP | OPT_BENCH, 0, 2 },
      cmd_bench },
    { { "roofline", "PACK DEVICE KERNELS",
        "Print how long windows of a pack should take on a device. DEVICE is a file of "
        "configs/devices, KERNELS a file with the figures of its kernels.",
        OPT_JSON | OPT_ROOF, 3 },
      cmd_roofline },
    { { "gate", "",
        "Decode with drafts and without, alone and together, on one rank and several, and compare "
        "the replies: exit code 1 if anything differs.",
        OPT_CONFIG | OPT_GATE | OPT_JSON | OPT_GROUP, 0 },
      cmd_gate },
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].spec.name, name) == 0)
            return &commands[i];
    return NULL;
}

void command_list(void)
{
    printf("usage: tandem COMMAND [OPTION]...\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-11s %s\n", commands[i].spec.name, commands[i].spec.help);
    printf("\ntandem COMMAND --help lists what a command takes; tandem --version prints the "
           "version.\n");
}
