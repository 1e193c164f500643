/* main.c owns the process: the command's name, its options, its exit code. */
#include "kernels/backend.h"
#include "src/base/log.h"
#include "src/base/mapping.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/transport/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A standard stream that is closed gets a descriptor that cannot do its work. Otherwise the next
 * file or socket would have its number, and a link between ranks would get the text. */
static int hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return fail(-errno, "/dev/null: open: %s", strerror(errno));
    return 0;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct options o;
    int code = options_parse(&c->spec, argc, argv, &o);

    if (code == 0 && o.help) {
        options_help(&c->spec);
    } else if (code == 0 && o.get) {
        code = cmd_config(&o);
    } else if (code == 0) {
        backend_settle(strcmp(o.cfg.link, "loop") == 0); /* which joins threads */
        comm_settle();
        log_open(o.cfg.ranks > 1 && strcmp(o.cfg.link, "loop") != 0 ? o.cfg.rank : -1,
                 (enum log_level)o.cfg.log_level);
        code = c->run(&o);
    }
    options_free(&o);
    return code;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    const struct command *c = command_find(name);
    int code = exit_code_of(STEP_DEVICE, hold_streams());

    if (code != CODE_DONE)
        return code;
    mapping_guard(CODE_DATA);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit of files fails, and says which */
    if (c)
        code = run(c, argc - 1, argv + 1);
    else if (strcmp(name, "--version") == 0)
        printf("tandem %s\n", TANDEM_VERSION);
    else if (strcmp(name, "--help") == 0 || strcmp(name, "help") == 0)
        command_list();
    else {
        (void)(*name ? fail(-EINVAL, "command \"%s\" is unknown; see tandem --help", name)
                     : fail(-EINVAL, "no command; tandem --help lists them"));
        code = CODE_USAGE;
    }
    if (fflush(stdout) != 0 && code == CODE_DONE) {
        fail(-errno, "cannot write the output: %s", strerror(errno));
        code = CODE_WRITE;
    }
    return code;
}
