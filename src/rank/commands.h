/* commands - what `tandem` can do; each takes parsed options and gives the process's exit code. */
#ifndef TANDEM_RANK_COMMANDS_H
#define TANDEM_RANK_COMMANDS_H

#include "src/rank/options.h"

struct command {
    struct command_spec spec;
    int (*run)(struct options *o);
};

/* command_find - NULL if there is none of this name; command_list prints all on stdout. */
const struct command *command_find(const char *name);
void command_list(void);

int cmd_generate(struct options *o);
int cmd_score(struct options *o);
int cmd_against(struct options *o); /* score with --against */
int cmd_tokenize(struct options *o);
int cmd_detokenize(struct options *o);
int cmd_pack(struct options *o);
int cmd_inspect(struct options *o);
int cmd_convert(struct options *o);
int cmd_preflight(struct options *o);
int cmd_config(struct options *o);
int cmd_report(struct options *o);
int cmd_roofline(struct options *o);
int cmd_demo(struct options *o);
int cmd_bench(struct options *o);
int cmd_bench_device(struct options *o);    /* bench with --window, --kernels */
int cmd_bench_transport(struct options *o); /* bench with --transport */
int cmd_gate(struct options *o);

#endif
