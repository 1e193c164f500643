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

#define BESIDE (sizeof(beside) / sizeof(beside[0]))

struct texts {
    char *text[BESIDE]; /* NULL: not there */
    size_t bytes[BESIDE];
};

static int read_texts(struct texts *t, const char *folder)
{
    for (size_t i = 0; i < BESIDE; i++) {
        char path[PATH_CAP];
        int r = path_join(path, sizeof(path), folder, beside[i]);

        if (r == 0 && access(path, F_OK) == 0)
            r = file_read(path, (size_t)256 << 20, &t->text[i], &t->bytes[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static int write_texts(const struct texts *t, const char *folder)
{
    for (size_t i = 0; i < BESIDE; i++) {
        char path[PATH_CAP];
        int r = path_join(path, sizeof(path), folder, beside[i]);

        if (r == 0 && t->text[i])
            r = file_write(path, t->text[i], t->bytes[i], 0644);
        if (r < 0)
            return r;
    }
    return 0;
}

static void free_texts(struct texts *t)
{
    for (size_t i = 0; i < BESIDE; i++)
        free(t->text[i]);
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
    struct texts texts = { 0 };
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
        r = read_texts(&texts, c.folder); /* before anything is written */
    if (r == 0)
        r = checkpoint_failure(&c, convert(&spec, c.source), &step);
    if (r == 0) {
        step = STEP_WRITE;
        r = write_texts(&texts, o->word[1]);
    }
    free_texts(&texts);
    if (r == 0)
        log_info("%s: the weights of %s as %s", o->word[1], o->word[0], o->to);
    else if (made)
        rmdir(o->word[1]); /* which leaves one with files in it */
    checkpoint_close(&c);
    return r == -EINTR ? CODE_KILLED : exit_code_of(step, r);
}
