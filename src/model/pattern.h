/* pattern - regular expressions of tokenizer.json files; the one home of PCRE2.
 *
 * Such expressions are written for Oniguruma with Ruby syntax. They are translated so that the same
 * text splits in the same places:
 *
 *   \s \S \w \W \h \H   Unicode White_Space, Unicode words, hex digits
 *   \uHHHH, \p{Han}     a code point; the script itself, not its extensions
 *   {n,m}+ and {,m}     a repeated repetition (not possessive); {0,m}
 *   ^ $ and (?m)        lines always; (?m) lets . match a newline
 *
 * Sets inside sets and && are refused: they mean something else to PCRE2.
 */
#ifndef TANDEM_MODEL_PATTERN_H
#define TANDEM_MODEL_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pattern;

/* pattern_open - compile regex, or the literal text itself if literal.
 *
 * in, out  name begins every message: a file and the place in it
 * errors   -EINVAL with the position if it is no expression, is empty or is not understood; -ENOMEM
 */
int pattern_open(const char *regex, bool literal, const char *name, struct pattern **out);
void pattern_close(struct pattern *p);

/* struct pattern_run - the scratch and the time budget of one thread that matches.
 *
 *   A match may take steps in proportion to the text; all matches since the last pattern_run_budget
 *   may
 *   take budget_ns of this thread's processor time. An expression that backtracks without end, or
 *   one
 *   that is quadratic over its matches, thus ends in an error and not in a hang.
 *
 * owns     scratch, from open to close
 */
struct pattern_run {
    struct pattern_scratch *scratch;
    int64_t deadline_ns;
    unsigned matches;
};

int pattern_run_open(struct pattern_run *run);
void pattern_run_close(struct pattern_run *run);
void pattern_run_budget(struct pattern_run *run, int64_t budget_ns);

/* struct pattern_match - one place after the other, left to right, in one text. Start with
 * { .text = s, .bytes = n }; the text is valid UTF-8 and stays where it is.
 */
struct pattern_match {
    const char *text;
    size_t bytes;
    size_t start, end; /* the match found last */
    size_t next;       /* where the search goes on */
    bool any;          /* there was a match before */
};

/* pattern_next - find the next match. An empty match right behind the one before is passed over.
 *
 * errors   outcome 1: there is no further match. -ETIME: over the limits above; -ENOMEM
 */
int pattern_next(const struct pattern *p, struct pattern_run *run, struct pattern_match *m);

#endif
