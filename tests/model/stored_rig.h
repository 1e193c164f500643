/* stored_rig - checkpoint folders from a line of text: "w.weight:U8[8,32]
 * w.weight_scale_2:F32[]=3f800000". Data are zeros, or the 32 bits behind the equals sign again and
 * again. */
#ifndef TANDEM_TESTS_MODEL_STORED_RIG_H
#define TANDEM_TESTS_MODEL_STORED_RIG_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "kernels/formats/exl3.h"
#include "src/model/stored.h"
#include "tests/model/tensors.h"

static inline size_t type_bytes(const char *type)
{
    return strstr(type, "32") ? 4 : strstr(type, "16") ? 2 : 1;
}

static inline void tensors_line(struct tensors *f, const char *line)
{
    char name[256], type[32], shape[72], value[16];

    while (*line) {
        size_t n = 1, bytes;
        uint32_t bits = 0;
        char *data, *end;
        int used, got = sscanf(line, "%255[^:]:%31[^[][%63[^] ]%n", name, type, shape + 1, &used);

        if (got < 3) { /* no dimensions */
            cr_assert(sscanf(line, "%255[^:]:%31[^[][]%n", name, type, &used) == 2, "%s", line);
            shape[1] = 0;
        } else {
            used++;
        }
        shape[0] = '[';
        strcat(shape, "]");
        for (const char *p = shape + 1; *p != ']'; p = *end == ',' ? end + 1 : end)
            n *= (size_t)strtoul(p, &end, 10);
        line += used;
        if (*line == '=') {
            cr_assert(sscanf(line, "=%15[0-9a-fA-F]%n", value, &used) == 1);
            bits = (uint32_t)strtoul(value, NULL, 16);
            line += used;
        }
        while (*line == ' ')
            line++;
        bytes = n * type_bytes(type);
        data = calloc(bytes + 4, 1);
        for (size_t i = 0; i < bytes; i += 4)
            memcpy(data + i, &bits, 4);
        tensors_add(f, name, type, shape, data, bytes);
        free(data);
    }
}

/* A source of these tensors and, unless it is NULL, this config.json; its folder is gone
 * already. */
static inline int source_of(const char *line, const char *config, struct source **out)
{
    char folder[PATH_CAP], path[PATH_CAP];
    struct tensors f = { 0 };
    int r;

    temp_folder(folder);
    tensors_line(&f, line);
    tensors_write(&f, folder, "model.safetensors");
    path_join(path, sizeof(path), folder, "config.json");
    if (config)
        cr_assert(eq(int, file_write(path, config, strlen(config), 0644), 0));
    r = source_hf_open(folder, out);
    folder_count(folder, 1);
    return r;
}

/* A whole tensor. */
static inline void *take(struct source *s, const struct stored_tensor *t)
{
    size_t bytes = (size_t)t->t.elements * (size_t)t->t.each;
    void *p = malloc(bytes + 8);

    cr_assert(eq(int, s->ops->read(s, t->name, &t->t, 0, p, bytes), 0), "%s", t->name);
    return p;
}

/* W [n][k] of a weight straight from the checkpoint's bytes; EXL3: Wq of one slice. */
static inline void stored_values(struct source *s, const struct stored *w, int slice, float *out)
{
    unsigned char *code = take(s, &w->slice[slice].codes),
                  *scale = w->scale.name[0] ? take(s, &w->scale) : NULL;
    int64_t k_all = w->k;
    float tile[256];

    for (int64_t n = 0; n < w->n; n++)
        for (int64_t k = 0; k < k_all; k++) {
            size_t at = (size_t)(n * k_all + k);
            int nibble = mat_group(w->dtype) ? code[at / 2] >> (k % 2 * 4) & 15 : 0;
            float *v = &out[at], s1;

            switch (w->dtype) {
            case DTYPE_FP8:
                at = (size_t)(n / w->q.block * ((k_all + w->q.block - 1) / w->q.block) +
                              k / w->q.block);
                if (w->q.e8m0)
                    s1 = f32_from_e8m0(scale[at]);
                else
                    f32_widen(w->scale.t.dtype, scale + at * (size_t)w->scale.t.each, 1, &s1);
                *v = f32_from_e4m3(code[n * k_all + k]) * s1;
                break;
            case DTYPE_MXFP4:
                *v = f32_from_e2m1((uint8_t)nibble) * f32_from_e8m0(scale[at / 32]);
                break;
            case DTYPE_NVFP4:
                s1 = f32_from_e4m3(scale[at / 16]);
                s1 = w->q.divides ? s1 / w->q.global : s1 * w->q.global;
                *v = f32_from_e2m1((uint8_t)nibble) * s1;
                break;
            default:
                if (n % 16 == 0 && k % 16 == 0) {
                    exl3_tile_values(
                        (uint16_t *)(void *)(code + (size_t)(k / 16 * (w->n / 16) + n / 16) * 16 *
                                                        w->q.bits2),
                        w->q.bits2, (enum codebook)w->q.codebook, tile);
                    for (int i = 0; i < 256; i++)
                        out[(size_t)(n + i % 16) * (size_t)k_all + (size_t)(k + i / 16)] = tile[i];
                }
            }
        }
    free(code);
    free(scale);
}

#endif
