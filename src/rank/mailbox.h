/* mailbox - the plan box of a group: over the plan's own links, or, where one of them cannot be
 * made, over TCP on all ranks. Only a start falls back; a link that fails later ends the group.
 */
#ifndef TANDEM_RANK_MAILBOX_H
#define TANDEM_RANK_MAILBOX_H

struct group;
struct link;
struct plan_box;
struct plan_box_settings;

/* mailbox_open - every rank at the same time; says with a warning that the plan goes over TCP, and
 * why.
 * errors   of plan_box_open; those of the group while it waits for the others, at most
 *          timeout_ms */
int mailbox_open(struct group *g, const struct plan_box_settings *s, int timeout_ms,
                 struct plan_box **out);

/* mailbox_open_over - the same over links that the caller names: own, and spare, whose entries are
 * all NULL where there are none */
int mailbox_open_over(struct group *g, struct link *const *own, struct link *const *spare,
                      const struct plan_box_settings *s, int timeout_ms, struct plan_box **out);

#endif
