/* cmd_report.c owns which logs a report is made of and where its page goes. */
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/rank/commands.h"
#include "src/rank/exit_code.h"
#include "src/rank/report_page.h"
#include "src/rank/report_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct chosen {
    struct report_log *log[VIEW_LOGS];
    int n;
};

static int add(struct chosen *c, const char *path)
{
    int err;

    if (c->n == VIEW_LOGS)
        return fail(-EINVAL, "report: more than %d logs", VIEW_LOGS);
    err = report_log_open(path, &c->log[c->n]);
    c->n += err == 0;
    return err;
}

/* Every rank's log of a folder as the setting `log` makes it. */
static int add_folder(struct chosen *c, const char *folder)
{
    int before = c->n, err = 0;

    for (int rank = 0; rank < RANKS_MAX && err == 0; rank++) {
        char path[PATH_CAP], name[32];

        snprintf(name, sizeof(name), "rank%d.jsonl", rank);
        err = path_join(path, sizeof(path), folder, name);
        if (err == 0 && access(path, F_OK) == 0)
            err = add(c, path);
    }
    if (err == 0 && c->n == before)
        err = fail(-ENOENT, "report: no rank<r>.jsonl in %s", folder);
    return err;
}

static int write_page(const struct report_view *v, const char *path, long *bytes)
{
    struct new_file out;
    FILE *f;
    int err = new_file_open(&out, path, 0666), fd;

    if (err < 0)
        return err;
    fd = dup(out.fd);
    f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        err = fail(-errno, "report: %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        new_file_drop(&out);
        return err;
    }
    err = report_page_write(v, f);
    *bytes = ftell(f);
    if (fclose(f) != 0 && err == 0)
        err = fail(-errno, "report: %s: %s", path, strerror(errno));
    if (err == 0)
        return new_file_commit(&out);
    new_file_drop(&out);
    return err;
}

/* A page in the place of a log would be its end. */
static int check_out(const struct chosen *c, const char *out)
{
    for (int i = 0; i < c->n; i++)
        if (same_file(c->log[i]->path, out)) {
            fail(-EINVAL, "report: --out %s is one of the logs", out);
            return CODE_USAGE;
        }
    return CODE_DONE;
}

/* Files of which no line is a round are no logs, unless they are empty. */
static int any_round(const struct report_view *v)
{
    for (int i = 0; i < v->n; i++)
        if (v->of[i].log->rounds > 0 || v->of[i].log->bad == 0)
            return CODE_DONE;
    fail(-EINVAL, "report: no line of %s is a round", v->of[0].log->path);
    return CODE_DATA;
}

int cmd_report(struct options *o)
{
    struct chosen c = { .n = 0 };
    struct report_view *v = NULL;
    struct stat st;
    long bytes = 0;
    int err = 0, code;

    for (int i = 0; i < WORDS_MAX && o->word[i] && err == 0; i++)
        err = stat(o->word[i], &st) == 0 && S_ISDIR(st.st_mode) ? add_folder(&c, o->word[i])
                                                                : add(&c, o->word[i]);
    code = err < 0 ? exit_code_of(STEP_DATA, err) : check_out(&c, o->out);
    if (code != 0) {
        for (int i = 0; i < c.n; i++)
            report_log_close(c.log[i]);
        return code;
    }
    code = exit_code_of(STEP_DATA, report_view_open(c.log, c.n, &v));
    if (code != 0)
        return code;
    report_text(v, stdout);
    err = write_page(v, o->out, &bytes);
    code = exit_code_of(STEP_WRITE, err == -ENOENT ? -EROFS : err); /* no folder to write in */
    if (code == 0)
        printf("\npage: %s (%ld KiB)%s\n", o->out, (bytes + 1023) / 1024,
               report_page_charts() ? "" : ", without charts: this build lacks Chart.js");
    if (code == 0)
        code = any_round(v);
    report_view_close(v);
    return code;
}
