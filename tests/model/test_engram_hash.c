#include "src/model/engram_hash.h"
#include "tests/base/capture.h"
#include "tests/rig/goldens.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

static const struct engram_spec released = {
    .layer = { 1, 14 }, .layers = 2, .orders = 4, .heads = 8, .vocab = 16000000, .classes = 99092
};
static const struct engram_spec pocket = {
    .layer = { 1, 2 }, .layers = 2, .orders = 4, .heads = 4, .vocab = 700, .classes = 3260
};

Test(engram_hash, released_multipliers_and_primes)
{
    static const int64_t mult[2][4] = {
        { 76632096046245, 4839876093313, 35959672319349, 73987337458391 },
        { 67716810739261, 51510806800915, 30921347202721, 82619226485591 },
    };
    static const int64_t prime[2][24] = {
        { 16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183,
          16000189, 16000207, 16000211, 16000253, 16000277, 16000289, 16000307, 16000321,
          16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463 },
        { 16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627,
          16000667, 16000669, 16000693, 16000697, 16000711, 16000729, 16000759, 16000769,
          16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889 },
    };
    static const int64_t rows[2] = { 384006168, 384016682 };
    struct engram_hash *h = NULL;

    cr_assert(eq(int, engram_hash_open(&released, &h), 0));
    for (int t = 0; t < 2; t++) {
        int64_t sum = 0;

        for (int s = 0; s < 4; s++)
            cr_expect(eq(i64, engram_hash_multipliers(h, t)[s], mult[t][s]));
        for (int c = 0; c < 24; c++) {
            cr_expect(eq(i64, engram_hash_primes(h, t)[c], prime[t][c]));
            cr_expect(eq(i64, engram_hash_offsets(h, t)[c], sum));
            sum += prime[t][c];
        }
        cr_expect(eq(i64, sum, rows[t]));
    }
    engram_hash_close(h);
}

static const struct {
    int table;
    int32_t class[4];
    int64_t row[24];
} vectors[] = {
    { 0,
      { 11, 222, 3333, 44444 },
      { 3645713,   24643053,  46915705,  49096414,  76368895,  85460066,  98005780,  126829741,
        137590346, 158229858, 164635329, 176794574, 200482959, 220529118, 226850193, 242642742,
        262840341, 275600200, 303278971, 310456946, 321071573, 345737487, 352010139, 383888281 } },
    { 1,
      { 11, 222, 3333, 44444 },
      { 10241628,  26470649,  36357386,  58956443,  78258449,  89619444,  103605224, 126643651,
        141423583, 146192368, 171638834, 181253392, 198993458, 210578307, 235733145, 244260641,
        271393985, 273807145, 291091276, 307102120, 326768187, 339869759, 364815710, 379285172 } },
    { 0,
      { 99091, 99091, 99091, 99091 },
      { 12193612,  18525611,  33702377,  52176866,  70091373,  89450377,  100640027, 117454273,
        132502226, 152419423, 173413713, 189351958, 194969302, 209293786, 229174967, 253024778,
        260190704, 284725966, 293362090, 315475397, 320215429, 344323020, 359453686, 375130424 } },
};

Test(engram_hash, released_rows)
{
    struct engram_hash *h = NULL;
    int64_t row[ENGRAM_COLUMNS_MAX];

    cr_assert(eq(int, engram_hash_open(&released, &h), 0));
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        engram_hash_rows(h, vectors[i].table, vectors[i].class, 2, row);
        for (int c = 0; c < 24; c++)
            cr_expect(eq(i64, row[c], vectors[i].row[c]), "vector %zu column %d", i, c);
    }
    engram_hash_close(h);
}

Test(engram_hash, a_dead_token_hides_all_older_ones)
{
    static const int32_t windows[][4] = { { 5, -1, 7, 8 }, { 5, -1, -1, -1 }, { 5, 2, 2, 2 } };
    struct engram_hash *h = NULL;
    int64_t row[3][ENGRAM_COLUMNS_MAX], live[ENGRAM_COLUMNS_MAX];

    cr_assert(eq(int, engram_hash_open(&released, &h), 0));
    for (int i = 0; i < 3; i++)
        engram_hash_rows(h, 0, windows[i], 2, row[i]);
    engram_hash_rows(h, 0, (const int32_t[]){ 5, 2, 7, 8 }, 2, live);
    for (int c = 0; c < 24; c++) {
        cr_expect(eq(i64, row[0][c], row[2][c]), "column %d", c);
        cr_expect(eq(i64, row[1][c], row[2][c]), "column %d", c);
        if (c >= 8)
            cr_expect(ne(i64, row[0][c], live[c]), "column %d", c);
    }
    engram_hash_close(h);
}

Test(engram_hash, pocket_constants_and_rows_of_all_golden_prompts)
{
    struct engram_hash *h = NULL;
    size_t n;
    const int32_t *map = golden_i32(&n, "engram.token_map");
    const int64_t *mult = golden_i64(&n, "engram.multipliers");
    const int64_t *prime = golden_i64(&n, "engram.primes");
    const int64_t *offset = golden_i64(&n, "engram.offsets");
    int64_t row[ENGRAM_COLUMNS_MAX];

    cr_assert(eq(int, engram_hash_open(&pocket, &h), 0));
    for (int t = 0; t < 2; t++) {
        for (int s = 0; s < 4; s++)
            cr_expect(eq(i64, engram_hash_multipliers(h, t)[s], mult[4 * t + s]));
        for (int c = 0; c < 12; c++) {
            cr_expect(eq(i64, engram_hash_primes(h, t)[c], prime[12 * t + c]));
            cr_expect(eq(i64, engram_hash_offsets(h, t)[c], offset[12 * t + c]));
        }
    }
    for (int p = 0; p < 6; p++) {
        size_t s, m;
        const int32_t *ids = golden_i32(&s, "%s.ids", golden_prompts[p]);
        bool tail = s > 1000; /* of the long prompt only the last rows are kept */
        const int32_t *want =
            golden_i32(&m, "%s.engram_hash_ids%s", golden_prompts[p], tail ? "_last64" : "");
        size_t first = s - m / 24;

        for (size_t i = first; i < s; i++)
            for (int t = 0; t < 2; t++) {
                int32_t class[4];

                for (size_t k = 0; k < 4; k++)
                    class[k] = i >= k ? map[ids[i - k]] : -1;
                engram_hash_rows(h, t, class, map[2], row);
                for (int c = 0; c < 12; c++)
                    cr_expect(eq(i64, row[c], want[24 * (i - first) + (size_t)(12 * t + c)]),
                              "%s position %zu table %d column %d", golden_prompts[p], i, t, c);
            }
    }
    engram_hash_close(h);
}

Test(engram_hash, values_out_of_range_are_refused_by_name)
{
    static const struct {
        struct engram_spec spec;
        const char *message;
    } bad[] = {
        { { { 1 }, 0, 4, 8, 700, 10 }, "config: engram_layer_ids: count: 0, want 1 .. 4" },
        { { { 1 }, 1, 1, 8, 700, 10 }, "config: engram_max_ngram_size: 1, want 2 .. 8" },
        { { { 1 }, 1, 4, 0, 700, 10 }, "config: engram_n_heads: 0, want 1 .. 64" },
        { { { 1 }, 1, 4, 8, 0, 10 }, "config: engram_vocab_size: 0, want 1 .. 2147483647" },
        { { { 1 }, 1, 4, 8, 700, 0 },
          "config: engram_compressed_vocab_size: 0, want 1 .. 16777216" },
        { { { 3, 3 }, 2, 4, 8, 700, 10 }, "config: engram_layer_ids: 3, want 4 .." },
        { { { -1 }, 1, 4, 8, 700, 10 }, "config: engram_layer_ids: -1, want 0 .." },
        { { { 1 }, 1, 4, 8, 2000000000, 10 },
          "config: engram_vocab_size: 2000000000 makes a table of 2^31 rows" },
    };
    struct engram_hash *h;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct capture c;

        capture_start(&c);
        cr_expect(eq(int, engram_hash_open(&bad[i].spec, &h), -EINVAL));
        log_sink(NULL, NULL);
        cr_expect(eq(int, c.lines, 1));
        cr_expect(ne(ptr, strstr(c.last, bad[i].message), NULL), "%s", c.last);
    }
}
