/* exit_code - what the process says to its parent, and which error of which step becomes which
 * code.
 *
 * Errors travel as negative errno. The same errno means different things in different steps: a
 * missing file is a missing file everywhere, but nonsense in a config is 78 and nonsense in a model
 * is 65.
 */
#ifndef TANDEM_RANK_EXIT_CODE_H
#define TANDEM_RANK_EXIT_CODE_H

enum exit_code {
    CODE_DONE = 0,
    CODE_NO = 1,           /* a comparison or verification said no, or was cut short */
    CODE_USAGE = 64,       /* command line wrong */
    CODE_DATA = 65,        /* model, pack, prompt or ids wrong */
    CODE_MISSING = 66,     /* a named file is missing */
    CODE_UNAVAILABLE = 69, /* device, link or port */
    CODE_GROUP = 70,       /* the group failed, or a fault of our own */
    CODE_RESOURCE = 71,    /* memory or another resource is short */
    CODE_WRITE = 73,       /* cannot write */
    CODE_AUTH = 77,
    CODE_CONFIG = 78,
    CODE_KILLED = 130 /* a second signal, or one while nothing can be drained */
};

enum exit_step {
    STEP_CONFIG, /* config file, settings and what a model can do with them */
    STEP_DATA,   /* reading a checkpoint, pack, prompt or ids */
    STEP_WRITE,  /* writing packs, logs or output */
    STEP_DEVICE, /* backend, memory of the device */
    STEP_ROUND   /* anything after the group was open */
};

/* exit_code_of - the code for an error r < 0 of a step; 0 for r == 0. */
int exit_code_of(enum exit_step step, int r);

#endif
