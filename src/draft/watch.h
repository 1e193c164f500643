/* watch - whether a drafter earns its keep: acceptance by position after some rounds, and slots
 * whose drafts have stopped being any good. What it says is for the log; it decides nothing about
 * text.
 */
#ifndef TANDEM_DRAFT_WATCH_H
#define TANDEM_DRAFT_WATCH_H

#include "src/base/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WATCH_ROUNDS 200

/* Zeros are new. */
struct draft_watch {
    int rounds; /* that were offered drafts or should have been */
    int tried[2][WINDOW_MAX], kept[2][WINDOW_MAX]; /* by greedy or sampled, then position */
    int64_t proposed;
    bool said;
};

enum watch_verdict {
    WATCH_QUIET, /* nothing to say yet, or it was said */
    WATCH_FINE,  /* the line is information */
    /* greedy drafts at position 1 are kept too rarely for anything but prose: a warning */
    WATCH_LOW,
    WATCH_SILENT, /* not one draft was proposed: an error, the drafter does not fit */
};

/* watch_note - a round of a slot that drafts: proposed, verified and kept drafts. */
void watch_note(struct draft_watch *w, bool sampled, int proposed, int k, int a);

/* watch_verdict - once, after WATCH_ROUNDS rounds; out gets the line to log. */
enum watch_verdict watch_verdict(struct draft_watch *w, const char *drafter, char *out, size_t cap);

/* ---- slots ----------------------------------------------------------------------------------- */

#define ALARM_POOR 0.02   /* of the verified drafts kept: below it a slot is not drafted for */
#define ALARM_NORMAL 0.10 /* at least: another slot that shows that it is not the weather */

/* Zeros are new; a slot that is new is zeroed too. */
struct slot_alarm {
    int rounds, tried, kept; /* since the last verdict */
    double last;             /* share kept at the last verdict */
    bool judged, raised;
};

/* alarm_note - a drafted round of alarm[slot]. 1: this slot's drafts are to stop for good; say so
 * and go on with k = 0. That is when under ALARM_POOR of WATCH_ROUNDS rounds' drafts were kept
 * while another slot has at least ALARM_NORMAL, or at once for a pass with a number that is not
 * finite (bad). */
int alarm_note(struct slot_alarm *alarm, int slot, int k, int a, bool bad);

#endif
