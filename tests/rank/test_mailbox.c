/* A plan whose links cannot be made goes over TCP on all ranks, and says so. */
#include "src/rank/mailbox.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "src/rank/plan_box.h"
#include "tests/rank/town.h"
#include "tests/transport/fault.h"

enum { WORDS = 200, MESSAGES = 20 };

static const struct {
    const char *name;
    int world, culprit, peer; /* whose link to whom cannot be made; -1: nobody's */
} cases[] = {
    { "all can", 2, -1, 0 },
    { "rank 0 cannot", 2, 0, 1 },
    { "rank 1 cannot", 2, 1, 0 },
    { "one of three cannot", 3, 2, 0 },
};

struct mail_town {
    struct town t;
    struct wires own;
    struct fault_link fault;
    int result[WIRES_MAX], got[WIRES_MAX];
};

static void run_rank(int rank, void *arg)
{
    struct mail_town *m = arg;
    struct plan_box_settings s = { .spin_us = 20, .wait_limit_ms = 5000, .max_words = WORDS };
    struct link *spare[WIRES_MAX] = { 0 };
    struct plan_box *b = NULL;
    uint64_t word[WORDS] = { 0 };

    open_rank(rank, &m->t);
    if (m->t.result[rank] < 0)
        return;
    for (int p = 0; p < m->own.world; p++)
        if (p != rank)
            spare[p] = group_link(m->t.group[rank], p, GROUP_PLAN);
    m->result[rank] = mailbox_open_over(m->t.group[rank], m->own.link[rank], spare, &s, 5000, &b);
    for (int k = 0; k < MESSAGES && m->result[rank] == 0; k++) {
        struct plan_msg msg;

        word[WORDS - 1] = (uint64_t)k;
        if (rank == 0)
            m->result[0] = plan_box_send(b, 1, (uint32_t)k, 0, word, WORDS);
        else if ((m->result[rank] = plan_box_recv(b, 5000, &msg)) == 0)
            m->got[rank] += msg.n == WORDS && msg.word[WORDS - 1] == (uint64_t)k;
    }
    if (rank == 0 && m->result[0] == 0)
        m->result[0] = plan_box_settle(b, NULL);
    plan_box_close(b);
}

Test(mailbox, falls_back_on_all_ranks_or_on_none, .timeout = 60)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct mail_town m;
        int world = cases[i].world, a = cases[i].culprit, b = cases[i].peer;

        memset(&m, 0, sizeof(m));
        town_open(&m.t, "tcp", world);
        wires_open(&m.own, "loop", world, GROUP_PLAN);
        if (a >= 0) {
            fault_wrap(&m.fault, m.own.link[a][b], FAULT_REG, 0);
            m.own.link[a][b] = &m.fault.base;
        }
        wires_run(world, run_rank, &m);
        for (int r = 0; r < world; r++) {
            cr_expect(eq(int, m.t.result[r], 0), "%s: %s", cases[i].name, m.t.log[r]);
            cr_expect(eq(int, m.result[r], 0), "%s, rank %d: %s", cases[i].name, r, m.t.log[r]);
            cr_expect(r == 0 || m.got[r] == MESSAGES, "%s, rank %d has %d", cases[i].name, r,
                      m.got[r]);
            cr_expect(eq(int, strstr(m.t.log[r], "plan: it goes over TCP: ") != NULL, a >= 0),
                      "%s, rank %d: %s", cases[i].name, r, m.t.log[r]);
            cr_expect(strstr(m.t.log[r], "error") == NULL, "%s: %s", cases[i].name, m.t.log[r]);
        }
        if (a >= 0)
            cr_expect(strstr(m.t.log[a], "over TCP: link fault: no queue pair") != NULL, "%s",
                      m.t.log[a]);
        if (a >= 0)
            m.own.link[a][b] = m.fault.real;
        wires_close(&m.own);
        town_close(&m.t);
    }
}
