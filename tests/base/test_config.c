#include "src/base/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "src/base/file.h"
#include "tests/base/capture.h"

static struct config c;
static struct capture log_lines;

static void enter(void)
{
    capture_start(&log_lines);
    cr_assert(eq(int, config_init(&c), 0));
}

static void leave(void)
{
    config_free(&c);
    config_free(&c);
}

TestSuite(config, .init = enter, .fini = leave);

static char *value_of(const char *key)
{
    static char buf[4096];

    cr_assert(eq(int, config_get(&c, key, buf, sizeof(buf)), 0), "%s", key);
    return buf;
}

/* Every key of the documented table. */
static const struct {
    const char *key, *value;
} defaults[] = {
    { "model", "" },
    { "ranks", "1" },
    { "rank", "0" },
    { "link", "loop" },
    { "comm", "auto" },
    { "hosts", "" },
    { "port", "18515" },
    { "secret", "" },
    { "backend", "auto" },
    { "device", "auto" },
    { "numerics", "bf16" },
    { "cache_quant", "on" },
    { "partials", "auto" },
    { "experts", "width" },
    { "expert_top_p", "100" },
    { "draft", "auto" },
    { "depth", "auto" },
    { "spec_draft", "on" },
    { "costs", "auto" },
    { "slots", "4" },
    { "context", "8192" },
    { "window_max", "16" },
    { "prefill_chunk", "512" },
    { "ignore_eos", "off" },
    { "threads", "0" },
    { "pin", "auto" },
    { "graphs", "auto" },
    { "overlap", "on" },
    { "side", "on" },
    { "early_ingest", "off" },
    { "prefetch", "0" },
    { "prefetch_rate", "200" },
    { "graph_max", "48" },
    { "graph_pieces", "1" },
    { "engram_cache", "256MiB" },
    { "engram_io", "auto" },
    { "log", "" },
    { "log_level", "info" },
    { "trace_numerics", "off" },
    { "heartbeat_ms", "100" },
    { "peer_timeout_ms", "1000" },
    { "stall_ms", "10000" },
    { "wait_limit_ms", "30000" },
    { "round_limit_ms", "300000" },
    { "connect_timeout_ms", "300000" },
    { "grace_ms", "300" },
    { "rails", "auto" },
    { "stripe_min", "32KiB" },
    { "spin_us", "20" },
    { "plan_form", "flag" },
};

Test(config, every_key_has_its_default)
{
    FILE *f = tmpfile();
    char line[512];
    size_t keys = 0, n = sizeof(defaults) / sizeof(defaults[0]);
    const char *cache = value_of("cache");

    cr_expect(strlen(cache) > 14 && strcmp(cache + strlen(cache) - 14, "/.cache/tandem") == 0, "%s",
              cache);
    cr_expect(strchr(cache, '~') == NULL);
    for (size_t i = 0; i < n; i++)
        cr_expect(eq(str, value_of(defaults[i].key), (char *)defaults[i].value), "%s",
                  defaults[i].key);
    cr_expect(eq(int, config_check(&c), 0));
    cr_assert(eq(int, config_dump(&c, f), 0));
    rewind(f);
    while (fgets(line, sizeof(line), f))
        keys += line[0] != '#' && line[0] != '\n';
    cr_expect(eq(sz, keys, n + 1), "no key beside these and cache");
    fclose(f);
    cr_expect(eq(int, config_get(&c, "no", line, sizeof(line)), -EINVAL));
}

static const struct {
    const char *set, *key, *value;
} good[] = {
    { "ranks=2", "ranks", "2" },
    { "  slots =  3 \n", "slots", "3" },
    { "depth=0", "depth", "0" },
    { "depth=15", "depth", "15" },
    { "depth=auto", "depth", "auto" },
    { "device=7", "device", "7" },
    { "cache_quant=off", "cache_quant", "off" },
    { "cache_quant=1", "cache_quant", "on" },
    { "cache_quant=false", "cache_quant", "off" },
    { "cache_quant=yes", "cache_quant", "on" },
    { "cache_quant=no", "cache_quant", "off" },
    { "cache_quant=true", "cache_quant", "on" },
    { "cache_quant=0", "cache_quant", "off" },
    { "graphs=no", "graphs", "off" },
    { "numerics=released", "numerics", "released" },
    { "link=rdma", "link", "rdma" },
    { "engram_cache=1GiB", "engram_cache", "1GiB" },
    { "engram_cache=1536KiB", "engram_cache", "1536KiB" },
    { "engram_cache=1025", "engram_cache", "1025" },
    { "engram_cache=0", "engram_cache", "0" },
    { "prefetch=512KiB", "prefetch", "512KiB" },
    { "stall_ms=2s", "stall_ms", "2000" },
    { "stall_ms=50ms", "stall_ms", "50" },
    { "stall_ms=7", "stall_ms", "7" },
    { "model=a = b#c", "model", "a = b#c" },
    { "model=", "model", "" },
    { "hosts=192.0.2.1, 192.0.2.2", "hosts", "192.0.2.1, 192.0.2.2" },
    { "log_level=trace", "log_level", "trace" },
};

Test(config, values_are_parsed_by_type_and_the_last_one_wins)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_expect(eq(int, config_set(&c, good[i].set), 0), "%s", good[i].set);
        cr_expect(eq(str, value_of(good[i].key), (char *)good[i].value), "%s", good[i].set);
    }
    cr_expect(eq(int, c.ranks, 2));
    cr_expect(eq(int, c.depth, CONFIG_AUTO));
    cr_expect(eq(int, c.numerics, NUMERICS_RELEASED));
    cr_expect(eq(int, c.log_level, LOG_TRACE));
    cr_expect(eq(int, c.graphs, GRAPHS_OFF));
    cr_expect(eq(int, log_lines.lines, 0));
    cr_expect(eq(int, config_set(&c, "engram_cache=3MiB"), 0));
    cr_expect(eq(sz, c.engram_cache, (size_t)3 << 20));
}

static const struct {
    const char *set, *says;
} bad[] = {
    { "", "want key = value" },
    { "slots", "want key = value, got \"slots\"" },
    { "=3", "want a key before '='" },
    { "a_key_of_more_than_sixty-three_bytes_which_no_setting_of_ours_can_have=3",
      "unknown key a_key_of_more_than_sixty-three_b..." },
    { "slot=3", "config: unknown key slot, did you mean slots?" },
    { "windows_mx=3", "config: unknown key windows_mx, did you mean window_max?" },
    { "Ranks=3", "did you mean ranks?" },
    { "frobnicate=3", "config: unknown key frobnicate" },
    { "slots=", "slots: want a whole number, got \"\"" },
    { "slots=two", "slots: want a whole number, got \"two\"" },
    { "slots=2x", "slots: want a whole number" },
    { "slots=-1", "slots: want 1 to 4, got -1" },
    { "slots=+1", "slots: want a whole number" },
    { "slots=0x2", "slots: want a whole number" },
    { "slots=2.0", "slots: want a whole number" },
    { "slots=0", "slots: want 1 to 4, got 0" },
    { "slots=5", "slots: want 1 to 4, got 5" },
    { "ranks=9", "ranks: want 1 to 8, got 9" },
    { "ranks=99999999999999999999", "ranks: want 1 to 8, got 99999999999999999999" },
    { "ranks=4294967297", "ranks: want 1 to 8" },
    { "window_max=17", "window_max: want 1 to 16, got 17" },
    { "depth=16", "depth: want 0 to 15, got 16" },
    { "depth=Auto", "depth: want a whole number or auto" },
    { "port=65536", "port: want 1 to 65535" },
    { "context=0", "context: want 1 to" },
    { "cache_quant=maybe", "cache_quant: want on or off, got \"maybe\"" },
    { "link=ib", "link: want one of loop, tcp, shm, rdma, got \"ib\"" },
    { "link=", "link: want one of" },
    { "numerics=fp16", "numerics: want one of fp32, bf16, released" },
    { "engram_cache=1MB", "engram_cache: want a whole number of bytes" },
    { "engram_cache=1 MiB", "engram_cache: want a whole number of bytes" },
    { "engram_cache=9223372036854775807GiB", "engram_cache: want 0 to " },
    { "engram_cache=-1KiB", "engram_cache: want 0 to " },
    { "stall_ms=-1s", "stall_ms: want 1 to 86400000, got -1s" },
    { "slots=-", "slots: want a whole number" },
    { "slots=--1", "slots: want a whole number" },
    { "engram_cache=2048GiB", "engram_cache: want 0 to" },
    { "prefetch=on", "prefetch: want a whole number of bytes" },
    { "prefetch=1GiB", "prefetch: want 0 to" },
    { "prefetch_rate=0", "prefetch_rate: want 1 to" },
    { "stall_ms=0", "stall_ms: want 1 to" },
    { "stall_ms=5m", "stall_ms: want a whole number of ms" },
    { "model=a\tb\x01", "model: control character" },
    { "model=a #b", "begins a comment" },
    { "secret=#b",
      "secret: \"#\" behind a blank begins a comment" }, /* as it would stand in a dump */
};

Test(config, wrong_assignments_name_the_key_and_change_nothing)
{
    char *before, *after;

    cr_assert(eq(int, config_agree_text(&c, &before), 0));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int lines = log_lines.lines;

        cr_expect(eq(int, config_set(&c, bad[i].set), -EINVAL), "%s", bad[i].set);
        cr_expect(strstr(log_lines.last, bad[i].says) != NULL, "%s: \"%s\"", bad[i].set,
                  log_lines.last);
        cr_expect(eq(int, log_lines.lines, lines + 1), "%s", bad[i].set);
    }
    cr_expect(strstr(log_lines.last, "did you mean") == NULL);
    cr_assert(eq(int, config_agree_text(&c, &after), 0));
    cr_expect(eq(str, before, after));
    cr_expect(eq(str, value_of("model"), (char *)""));
    free(before);
    free(after);
}

Test(config, long_input_is_refused)
{
    char *text = malloc(10000);

    memset(text, 'k', 9999);
    text[9999] = 0;
    cr_expect(eq(int, config_set(&c, text), -EINVAL));
    text[100] = '=';
    cr_expect(eq(int, config_set(&c, text), -EINVAL));
    memcpy(text, "model=", 6);
    cr_expect(eq(int, config_set(&c, text), -EINVAL));
    text[6 + PATH_CAP] = 0; /* a byte more than there is room for */
    cr_expect(eq(int, config_set(&c, text), -EINVAL));
    text[6 + PATH_CAP - 1] = 0;
    cr_expect(eq(int, config_set(&c, text), 0));
    for (size_t n = 62; n < 68; n++) {
        memset(text, 'k', n);
        strcpy(text + n, "=1");
        cr_expect(eq(int, config_set(&c, text), -EINVAL), "a key of %zu bytes", n);
        cr_expect(strstr(log_lines.last, "unknown key kkk") != NULL, "%s", log_lines.last);
    }
    free(text);
}

static int read_text(const char *text, size_t bytes, char *path_out)
{
    char path[] = "/tmp/tandem-config-XXXXXX";
    int fd = mkstemp(path), r;

    cr_assert(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
    r = config_read(&c, path);
    unlink(path);
    strcpy(path_out, path);
    return r;
}

Test(config, files_hold_keys_and_comments)
{
    static const char text[] = "# two ranks here\r\n\n  ranks = 2 # both\n\tlink=tcp\t# cable\n"
                               "model = dir#1/x\nslots = 1\nslots = 2";
    char path[64], want[128];

    cr_expect(eq(int, read_text(text, sizeof(text) - 1, path), 0));
    cr_expect(eq(int, c.ranks, 2));
    cr_expect(eq(str, (char *)c.link, (char *)"tcp"));
    cr_expect(eq(str, c.model, (char *)"dir#1/x"));
    cr_expect(eq(int, c.slots, 2));
    cr_expect(eq(int, read_text("", 0, path), 0));

    cr_expect(eq(int, read_text("slots = 3\n\nrank = x\nslots = 4\n", 29, path), -EINVAL));
    snprintf(want, sizeof(want), "error: %s:3: rank: want a whole number, got \"x\"", path);
    cr_expect(eq(str, log_lines.last, want));
    cr_expect(eq(int, c.slots, 3), "lines before the wrong one have been applied");
    cr_expect(eq(int, read_text("[pair]\n", 7, path), -EINVAL));
    cr_expect(strstr(log_lines.last, ":1: want key = value, got \"[pair]\"") != NULL, "%s",
              log_lines.last);
    cr_expect(eq(int, read_text("slots = 1\nslots = \0002\n", 21, path), -EINVAL));
    cr_expect(strstr(log_lines.last, ":2: NUL byte") != NULL, "%s", log_lines.last);
    cr_expect(eq(int, config_read(&c, "/nonexistent/x"), -ENOENT));
}

static const struct {
    const char *name, *set[6], *says; /* says NULL: fine */
} relations[] = {
    { "two ranks in threads", { "ranks=2" }, NULL },
    { "rank outside", { "ranks=2", "rank=2" }, "rank 2, ranks is 2" },
    { "one rank needs no secret", { "link=tcp" }, NULL },
    { "no secret", { "ranks=2", "link=tcp" }, "link tcp with ranks 2 needs secret" },
    { "secret", { "ranks=2", "link=tcp", "secret=s" }, NULL },
    { "chunk below window", { "prefill_chunk=8" }, "prefill_chunk 8 is below window_max 16" },
    { "small both", { "prefill_chunk=1", "window_max=1" }, NULL },
    { "depth fills the window", { "depth=3", "window_max=4" }, NULL },
    { "depth too large", { "depth=4", "window_max=4" }, "depth 4 needs a window_max of 5" },
    { "heartbeat too slow", { "heartbeat_ms=501" }, "peer_timeout_ms 1000 is less than two of" },
    { "hosts missing", { "ranks=2", "hosts=192.0.2.1" }, "hosts names 1, ranks is 2" },
    { "hosts too many", { "hosts=192.0.2.1 192.0.2.2" }, "hosts names 2, ranks is 1" },
    { "threads on two hosts", { "ranks=2", "hosts=192.0.2.1,192.0.2.2" }, "link loop needs" },
    { "memory on two hosts",
      { "ranks=2", "hosts=192.0.2.1,192.0.2.2", "link=shm", "secret=s" },
      "link shm needs" },
    { "peer on two hosts",
      { "ranks=2", "hosts=192.0.2.1,192.0.2.2", "link=tcp", "secret=s", "comm=peer" },
      "comm peer needs" },
    { "two hosts", { "ranks=2", "hosts=192.0.2.1,192.0.2.2", "link=tcp", "secret=s" }, NULL },
    { "pinned", { "pin=3,12" }, NULL },
    { "two threads on one core",
      { "pin=3,3" },
      "pin: round and proxy thread want cores of their own" },
    { "not pinned", { "pin=off" }, NULL },
    { "one core", { "pin=3" }, "pin: want auto, off or two cores" },
    { "three cores", { "pin=3,4,5" }, "pin: want" },
    { "no cores", { "pin=," }, "pin: want" },
    { "cores of large numbers", { "pin=9998,9999" }, NULL },
    { "cores of larger ones", { "pin=10000,3" }, "pin: want" },
    { "weights ahead", { "prefetch=512KiB" }, NULL },
    { "nothing to be beside", { "prefetch=1MiB", "side=off" }, "prefetch needs side on" },
    { "no cache", { "cache=" }, "cache: want a folder" },
    { "no costs", { "costs=" }, "costs: want auto or a file" },
};

Test(config, relations_between_keys)
{
    for (size_t i = 0; i < sizeof(relations) / sizeof(relations[0]); i++) {
        int r;

        config_free(&c);
        cr_assert(eq(int, config_init(&c), 0));
        for (int k = 0; k < 6 && relations[i].set[k]; k++)
            cr_assert(eq(int, config_set(&c, relations[i].set[k]), 0), "%s", relations[i].name);
        log_lines.last[0] = 0;
        r = config_check(&c);
        cr_expect(eq(int, r, relations[i].says ? -EINVAL : 0), "%s", relations[i].name);
        cr_expect(relations[i].says ? strstr(log_lines.last, relations[i].says) != NULL
                                    : log_lines.last[0] == 0,
                  "%s: \"%s\"", relations[i].name, log_lines.last);
    }
}

Test(config, a_path_without_a_home_is_refused)
{
    free(c.cache);
    c.cache = strdup("~/.cache/tandem"); /* what stays when the user has no home folder */
    cr_expect(eq(int, config_check(&c), -EINVAL));
    cr_expect(strstr(log_lines.last, "cache: this user has no home folder") != NULL);
}

Test(config, a_dump_reads_back_as_the_same_config)
{
    char path[64], key_value[4096], *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        cr_assert(eq(int, config_set(&c, good[i].set), 0));
    cr_assert(eq(int, config_dump(&c, f), 0));
    fclose(f);
    cr_expect(strstr(text, "\n# default: 4; 1 to 4\nslots = 3\n") != NULL);
    cr_expect(strstr(text, "\n# default: auto; 0 to 15, or auto\ndepth = ") != NULL);
    cr_expect(strstr(text, "\n# default: 256MiB; 0 to 1024GiB\nengram_cache = ") != NULL);
    cr_expect(strstr(text, "one of loop, tcp, shm, rdma\nlink = rdma\n") != NULL);
    config_free(&c);
    cr_assert(eq(int, config_init(&c), 0));
    cr_expect(eq(int, read_text(text, bytes, path), 0));
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        const char *key = good[i].key;

        snprintf(key_value, sizeof(key_value), "\n%s =%s%s\n", key, value_of(key)[0] ? " " : "",
                 value_of(key));
        cr_expect(strstr(text, key_value) != NULL, "%s", key_value);
    }
    free(text);
    f = fopen("/dev/full", "w");
    if (f) {
        cr_expect(eq(int, config_dump(&c, f), -ENOSPC));
        fclose(f);
    }
}

/* Settings of one rank alone; every other key must agree. */
static const char *const local_keys[] = {
    "model=x",
    "cache=x",
    "rank=1",
    "hosts=a",
    "port=1",
    "secret=x",
    "device=3",
    "costs=x",
    "threads=3",
    "pin=off",
    "log=x",
    "log_level=err",
    "trace_numerics=on",
    "engram_cache=1",
    "engram_io=pread",
    "heartbeat_ms=1",
    "peer_timeout_ms=9",
    "stall_ms=1",
    "wait_limit_ms=1",
    "round_limit_ms=1",
    "grace_ms=1",
    "connect_timeout_ms=1",
    "spin_us=1",
    "overlap=off",
    "side=off",
    "prefetch=1MiB",
    "prefetch_rate=9",
    "graph_pieces=2",
};

static const char *const agreed_keys[] = {
    "ranks=2",         "link=tcp",        "comm=link",       "backend=ref",  "numerics=fp32",
    "cache_quant=off", "partials=fp32",   "experts=whole",   "draft=none",   "depth=3",
    "spec_draft=off",  "slots=1",         "context=99",      "window_max=4", "prefill_chunk=64",
    "ignore_eos=on",   "graphs=off",      "graph_max=1",     "rails=1",      "stripe_min=1",
    "plan_form=imm",   "early_ingest=on", "expert_top_p=90",
};

Test(config, the_agreed_text_holds_what_ranks_must_share)
{
    char *text, *now, *last = NULL, *line, *save;
    size_t lines = 0;

    cr_assert(eq(int, config_agree_text(&c, &text), 0));
    for (size_t i = 0; i < sizeof(local_keys) / sizeof(local_keys[0]); i++) {
        cr_assert(eq(int, config_set(&c, local_keys[i]), 0));
        cr_assert(eq(int, config_agree_text(&c, &now), 0));
        cr_expect(strcmp(text, now) == 0, "%s", local_keys[i]);
        free(now);
    }
    for (size_t i = 0; i < sizeof(agreed_keys) / sizeof(agreed_keys[0]); i++) {
        cr_assert(eq(int, config_set(&c, agreed_keys[i]), 0));
        cr_assert(eq(int, config_agree_text(&c, &now), 0));
        cr_expect(strcmp(text, now) != 0, "%s", agreed_keys[i]);
        free(text);
        text = now;
    }
    for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        cr_expect(last == NULL || strcmp(last, line) < 0, "%s before %s", last, line);
        last = line;
        lines++;
    }
    cr_expect(eq(sz, lines, sizeof(agreed_keys) / sizeof(agreed_keys[0])));
    cr_expect(eq(sz, lines + sizeof(local_keys) / sizeof(local_keys[0]),
                 sizeof(defaults) / sizeof(defaults[0]) + 1));
    free(text);
}

static const struct {
    const char *ranks, *hosts;
    int rank, neighbours, place;
    const char *host;
} places[] = {
    { "ranks=1", "hosts=", 0, 1, 0, "127.0.0.1" },
    { "ranks=4", "hosts=", 2, 4, 2, "127.0.0.1" },
    { "ranks=2", "hosts=192.0.2.1 192.0.2.2", 1, 1, 0, "192.0.2.2" },
    { "ranks=4", "hosts= a,b , a,b ", 3, 2, 1, "b" },
    { "ranks=4", "hosts=ab,a,ab,a", 2, 2, 1, "ab" },
};

Test(config, hosts_tell_who_shares_a_machine)
{
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char host[16];

        cr_assert(eq(int, config_set(&c, places[i].ranks), 0));
        cr_assert(eq(int, config_set(&c, places[i].hosts), 0));
        c.rank = places[i].rank;
        cr_expect(eq(int, config_neighbours(&c), places[i].neighbours), "case %zu", i);
        cr_expect(eq(int, config_device(&c), places[i].place), "case %zu", i);
        cr_expect(eq(int, config_host(&c, c.rank, host, sizeof(host)), 0));
        cr_expect(eq(str, host, (char *)places[i].host));
    }
    cr_expect(eq(int, config_host(&c, 4, (char[8]){ 0 }, 8), -EINVAL));
    cr_expect(eq(int, config_host(&c, 0, (char[2]){ 0 }, 2), -ENAMETOOLONG));
    cr_expect(config_threads(&c) >= 1);
    c.threads = 5;
    cr_expect(eq(int, config_threads(&c), 5));
}
