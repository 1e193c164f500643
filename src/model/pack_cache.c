/* pack_cache.c owns where packs of checkpoint folders are kept and how a folder is recognised. */
#include "src/model/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/log.h"
#include "src/model/pack_file.h"
#include "src/model/safetensors.h"
#include "src/model/source_index.h"

#define SMALL_FILE_MAX ((size_t)256 << 20)

int pack_cached(const char *cache, const struct pack_spec *spec, struct source *src,
                char path[PATH_CAP])
{
    char hex[HEX_CAP(SHA256_BYTES)], name[HEX_CAP(SHA256_BYTES) + 64], full[PATH_CAP];
    struct pack_toc t;
    int current, r = pack_plan(spec, 1, &t);

    if (r < 0)
        return r;
    snprintf(name, sizeof(name), "%s-%d%s%s%s/rank%d.pack",
             hex_format(spec->source_digest, SHA256_BYTES, hex), spec->ranks,
             t.layouts == PACK_CPU ? "" : "-device", spec->whole_experts ? "-whole" : "",
             spec->hollow ? "-hollow" : "", spec->rank);
    r = path_join(full, sizeof(full), cache, name);
    if (r < 0)
        goto free_toc;
    current = pack_is_current(full, spec, t.walk_digest);
    if (!current && src) {
        char folder[PATH_CAP];

        snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(full, '/') - full), full);
        r = make_dirs(folder, 0755);
        if (r == 0)
            r = pack_write(full, spec, src);
        if (r < 0)
            goto free_toc;
    }
    strcpy(path, full);
    r = current || src ? 0 : 1;

free_toc:
    pack_toc_free(&t);
    return r;
}

static void add_text(struct sha256 *s, const void *text, uint64_t bytes)
{
    sha256_add(s, &bytes, sizeof(bytes));
    sha256_add(s, text, bytes);
}

/* A small file whole, or that it is not there. */
static int add_file(struct sha256 *s, const char *folder, const char *name, bool wanted)
{
    char path[PATH_CAP], *text;
    size_t bytes;
    int r = path_join(path, sizeof(path), folder, name);

    if (r < 0)
        return r;
    add_text(s, name, strlen(name));
    if (!wanted && access(path, F_OK) < 0)
        return 0;
    r = file_read(path, SMALL_FILE_MAX, &text, &bytes);
    if (r < 0)
        return r;
    add_text(s, text, bytes);
    free(text);
    return 0;
}

/* Header, size and time of a shard. Its data may be 100 GB and is not looked at. */
static int add_shard(struct sha256 *s, const char *folder, const char *name)
{
    char path[PATH_CAP], *header;
    uint64_t data_bytes;
    size_t header_bytes;
    struct stat st;
    int fd, r = path_join(path, sizeof(path), folder, name);

    if (r < 0)
        return r;
    r = safetensors_header(path, &fd, &header, &header_bytes, &data_bytes);
    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        r = fail(-errno, "%s: stat: %s", path, strerror(errno));
    else {
        int64_t when[3] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };

        add_text(s, name, strlen(name));
        add_text(s, header, header_bytes);
        sha256_add(s, when, sizeof(when));
    }
    close(fd);
    free(header);
    return r;
}

int source_digest(const char *folder, uint8_t out[32])
{
    struct source_index x;
    struct sha256 *s;
    int r = source_index_read(folder, &x);

    if (r < 0)
        return r;
    r = sha256_open(&s);
    if (r < 0)
        goto free_index;
    r = add_file(s, folder, "config.json", true);
    if (r == 0)
        r = add_file(s, folder, "generation_config.json", false);
    if (r == 0)
        r = add_file(s, folder, "tokenizer.json", false);
    if (r == 0)
        r = add_file(s, folder, SOURCE_INDEX_FILE, x.listed);
    for (int i = 0; r == 0 && i < x.n_shards; i++)
        r = add_shard(s, folder, x.shard[i]);
    if (r == 0)
        r = sha256_end(s, out);
    sha256_close(s);

free_index:
    source_index_free(&x);
    return r;
}
