/* What the table of a pair says, and the one line that must change. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/rank/preflight.h"

/* A pair over one cable with both halves, fit. */
static void fit_pair(struct facts of[2])
{
    for (int r = 0; r < 2; r++) {
        of[r].n = 0;
        facts_put(&of[r], "machine", "spark%d", r);
        facts_put(&of[r], "kernel", "6.1");
        facts_put(&of[r], "time_ms", "1000");
        facts_put(&of[r], "memlock", "unlimited");
        facts_put(&of[r], "mtu", "9000");
        facts_put(&of[r], "rdma", "2 of 4 ports usable");
        facts_put(&of[r], "rdma.half0.1", "active 10.0.0.%d/30 gid 3 of 6 mtu 4096", r + 1);
        facts_put(&of[r], "rdma.half1.1", "active 10.0.1.%d/30 gid 4 of 6 mtu 4096", r + 1);
        facts_put(&of[r], "rdma.other.1", "down no-address gid -1 of 0 mtu 1024");
        facts_put(&of[r], "version", "1");
        facts_put(&of[r], "program", "aa");
        facts_put(&of[r], "secret", "bb");
        facts_put(&of[r], "pack", "cc");
        facts_put(&of[r], "pcie.half0", "32.0 GT/s PCIe x4");
        facts_put(&of[r], "meet", "262144 bytes each way over rdma, 10.1 GB/s");
        facts_put(&of[r], "config.link", "rdma");
        facts_put(&of[r], "config.depth", "auto");
    }
}

static void change(struct facts *f, const char *key, const char *value)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->fact[i].key, key) == 0)
            snprintf(f->fact[i].value, sizeof(f->fact[i].value), "%s", value);
}

static const struct {
    const char *name, *key, *value; /* of rank 1 */
    int bad;
    const char *says;
} cases[] = {
    { "as it should be", "kernel", "6.1", 0, "\nfit\n" },
    { "another kernel", "kernel", "6.2", 0, "fit, with warnings" },
    { "another GID index there", "rdma.half0.1", "active 10.0.0.2/30 gid 5 of 6 mtu 4096", 0,
      "\nfit\n" },
    { "clocks that differ", "time_ms", "99000", 0, "98000 ms apart" },
    { "little lockable memory", "memlock", "bad: 64 KiB; set it", 1,
      "not fit: rank 1, memlock: 64 KiB; set it" },
    { "another build", "program", "ab", 1, "not fit: program differs: aa on rank 0, ab on rank 1" },
    { "another secret", "secret", "be", 1, "not fit: secret differs" },
    { "another pack", "pack", "cd", 1, "not fit: pack differs" },
    { "a pack that is to be made", "pack", "warn: not made yet", 0, "fit, with warnings" },
    { "another setting", "config.depth", "3", 1,
      "not fit: setting depth differs: auto on rank 0, 3 on rank 1" },
    { "netdev MTU", "mtu", "1500", 1, "not fit: mtu differs: 9000 on rank 0, 1500 on rank 1" },
    { "RDMA MTU of one half", "rdma.half1.1", "active 10.0.1.2/30 gid 4 of 6 mtu 1024", 1,
      "not fit: MTU of half1.1 is 4096 on rank 0, 1024 on rank 1" },
    { "a message that does not come through", "meet", "bad: rdma: rank 0 does not answer", 1,
      "not fit: rank 1, meet: rdma: rank 0 does not answer" },
    { "a device in half its slot", "pcie.half0", "warn: 32.0 GT/s PCIe x2 of 32.0 GT/s PCIe x4", 0,
      "fit, with warnings" },
    { "ports that are down are shown too", "rdma.other.1", "down no-address gid -1 of 0 mtu 1024",
      0, "rdma.other.1 | down no-address" },
    { "one half is down", "rdma.half1.1", "down 10.0.1.2/30 gid 4 of 6 mtu 4096", 0,
      "no port of rank 1 is in its subnet" },
};

Test(preflight, names_the_line_that_must_change)
{
    static struct facts of[2];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        fit_pair(of);
        change(&of[1], cases[i].key, cases[i].value);
        cr_expect(eq(int, facts_judge(of, 2, f), cases[i].bad), "%s", cases[i].name);
        fclose(f);
        cr_expect(strstr(text, cases[i].says) != NULL, "%s: no \"%s\" in\n%s", cases[i].name,
                  cases[i].says, text);
        free(text);
    }
}

Test(preflight, a_pair_without_a_common_subnet_is_not_fit)
{
    static struct facts of[2];
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    fit_pair(of);
    change(&of[1], "rdma.half0.1", "active 10.9.0.2/30 gid 3 of 6 mtu 4096");
    change(&of[1], "rdma.half1.1", "active 10.9.1.2/30 gid 3 of 6 mtu 4096");
    cr_expect(eq(int, facts_judge(of, 2, f), 1));
    fclose(f);
    cr_expect(strstr(text, "not fit: no RDMA port of rank 0 shares a subnet") != NULL, "%s", text);
    free(text);
}

Test(preflight, the_rank_that_differs_is_named_and_a_slot_is_shown_once)
{
    static const char *const keys[] = { "program", "config.depth" };
    static struct facts of[3];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char *text = NULL, *slot;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);

        fit_pair(of);
        of[2] = of[1];
        change(&of[2], keys[i], "other");
        facts_put(&of[0], "pcie.half0", "32.0 GT/s PCIe x4"); /* of its second port */
        cr_expect(eq(int, facts_judge(of, 3, f), 1));
        fclose(f);
        cr_expect(strstr(text, "on rank 0, other on rank 2") != NULL, "%s", text);
        slot = strstr(text, "pcie.half0");
        cr_expect(slot && !strstr(slot + 1, "pcie.half0"), "%s", text);
        free(text);
    }
}

/* Debian gives a machine's own name the address 127.0.1.1. */
Test(preflight, a_host_on_the_loopback_serves_only_ranks_of_this_machine)
{
    static const struct {
        const char *hosts;
        int bad;
    } at[] = { { "hosts=localhost,192.0.2.1", 1 }, { "hosts=localhost,localhost", 0 } };
    static struct facts f;

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        struct config c;
        const char *address;

        cr_assert(eq(int, config_init(&c), 0));
        cr_assert(eq(int, config_set(&c, "ranks=2"), 0));
        cr_assert(eq(int, config_set(&c, at[i].hosts), 0));
        facts_gather(&c, &f);
        address = facts_find(&f, "address");
        cr_assert(address != NULL);
        cr_expect(
            eq(int, strncmp(address, "bad: hosts: localhost is the loopback", 37) == 0, at[i].bad),
            "%s: %s", at[i].hosts, address);
        config_free(&c);
    }
}

Test(preflight, facts_of_this_machine_are_read_back_as_written)
{
    static struct facts a, b;
    char path[] = "/tmp/test_preflight.XXXXXX";
    struct config c;
    FILE *f;

    cr_assert(eq(int, config_init(&c), 0));
    facts_gather(&c, &a);
    f = fdopen(mkstemp(path), "w");
    fprintf(f, "a line of a shell that talks when it starts\n");
    facts_write(&a, f);
    fclose(f);
    cr_assert(eq(int, facts_read(path, &b), 0));
    unlink(path);
    cr_assert(eq(int, b.n, a.n));
    for (int i = 0; i < a.n; i++) {
        cr_expect(eq(str, b.fact[i].key, a.fact[i].key));
        cr_expect(eq(str, b.fact[i].value, a.fact[i].value));
    }
    cr_expect(facts_find(&b, "kernel") != NULL);
    cr_expect(facts_find(&b, "config.depth") != NULL);
    config_free(&c);
}
