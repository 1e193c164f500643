/* cmd_convert.c owns the command that writes a checkpoint in another format. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/model/convert.h"
#include "src/model/source_index.h"
#include "src/rank/checkpoint.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* What belongs to a model beside its weights, where it is there. */
static const char *const beside[] = { "tokenizer.json", "tokenizer_config.json",
                                      "generation_config.json", "chat_template.jinja" };

static int copy_texts(const char *from, const char *to, enum exit_step *step)
{
    *step = STEP_WRITE;
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        char in[PATH_CAP], out[PATH_CAP], *text;
        size_t bytes;
        int r = path_join(in, sizeof(in), from, beside[i]);

        if (r == 0)
            r = path_join(out, sizeof(out), to, beside[i]);
        if (r < 0)
            return r;
        if (access(in, F_OK) != 0)
            continue;
        *step = STEP_DATA;
        r = file_read(in, (size_t)256 << 20, &text, &bytes);
        if (r < 0)
            return r;
        *step = STEP_WRITE;
        r = file_write(out, text, bytes, 0644);
        free(text);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A checkpoint, or what is left of one, whose files new ones of the same names would replace. */
static bool has_checkpoint(const char *folder)
{
    static const char *const files[] = { "config.json", SOURCE_INDEX_FILE, "model.safetensors" };

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[PATH_CAP];
        struct stat s;

        if (path_join(path, sizeof(path), folder, files[i]) == 0 && stat(path, &s) == 0 &&
            S_ISREG(s.st_mode)) {
            fail(-EEXIST, "convert: OUT has a checkpoint already, %s; remove it or name another",
                 path);
            return true;
        }
    }
    return false;
}

/* The first signal ends it with nothing left behind, the second at once. */
static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
    (void)signal;
    if (stop)
        _exit(CODE_KILLED);
    stop = 1;
}

static void catch_signals(void)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

int cmd_convert(struct options *o)
{
    struct checkpoint_settings set = { .model = o->word[0], .ranks = 1 };
    struct convert_spec spec = { .folder = o->word[1],
                                 .shard_bytes = CONVERT_SHARD_BYTES,
                                 .stop = &stop };
    enum exit_step step = STEP_DATA;
    bool made = access(o->word[1], F_OK) != 0;
    struct checkpoint c;
    int r;

    if (!o->to) {
        fail(-EINVAL, "convert: wants --to FORMAT; see tandem convert --help");
        return CODE_USAGE;
    }
    if (scheme_parse(o->to, &spec.scheme) < 0 || convert_check(&spec.scheme) < 0)
        return CODE_USAGE;
    r = checkpoint_open(&set, &step, &c);
    if (r < 0)
        return exit_code_of(step, r);
    /* New shards would take the places of those they are made of. */
    if (same_file(c.folder, o->word[1])) {
        fail(-EINVAL, "convert: OUT %s is the folder of MODEL, which would be lost", o->word[1]);
        checkpoint_close(&c);
        return CODE_USAGE;
    }
    if (has_checkpoint(o->word[1])) {
        checkpoint_close(&c);
        return CODE_WRITE;
    }
    catch_signals();
    r = checkpoint_source(&c);
    spec.parts = c.spec.parts;
    spec.n_parts = c.spec.n_parts;
    spec.config = c.plan.config;
    if (r == 0)
        r = checkpoint_failure(&c, convert(&spec, c.source), &step);
    if (r == 0)
        r = copy_texts(c.folder, o->word[1], &step);
    if (r == 0)
        log_info("%s: the weights of %s as %s", o->word[1], o->word[0], o->to);
    else if (made)
        rmdir(o->word[1]); /* which leaves one with files in it */
    checkpoint_close(&c);
    return r == -EINTR ? CODE_KILLED : exit_code_of(step, r);
}
