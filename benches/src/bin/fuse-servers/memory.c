/* The files of `store.rs`, served by libfuse's low-level interface: memory MOUNTPOINT FILES MIB
 * READERS CHANNEL, the last one of dev and uring. Compiled by the bench. */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <fuse_lowlevel.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL (16 * 1024)
#define BUCKETS (1 << 17)
#define VALID 3600.0

struct file {
    struct file *next;
    struct file *next_node;
    fuse_ino_t node;
    char *name;
    char *bytes;
    size_t size;
    int references;
    pthread_rwlock_t lock;
};

static pthread_mutex_t files = PTHREAD_MUTEX_INITIALIZER;
static struct file *names[BUCKETS];
static struct file *nodes[BUCKETS];
static fuse_ino_t last = FUSE_ROOT_ID;

/* Requests that came through a ring, and otherwise: the kernel falls back in silence. */
static atomic_ulong by_ring, otherwise;

static void note_channel(fuse_req_t request)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
    atomic_fetch_add(fuse_req_is_uring(request) ? &by_ring : &otherwise, 1);
#else
    (void)request;
    atomic_fetch_add(&otherwise, 1);
#endif
}

static size_t bucket(const char *name)
{
    size_t hash = 1469598103934665603u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash % BUCKETS;
}

/* With the lock. */
static struct file *by_name(const char *name)
{
    struct file *file = names[bucket(name)];
    while (file && strcmp(file->name, name))
        file = file->next;
    return file;
}

static struct file *take(fuse_ino_t node)
{
    pthread_mutex_lock(&files);
    struct file *file = nodes[node % BUCKETS];
    while (file && file->node != node)
        file = file->next_node;
    if (file)
        file->references++;
    pthread_mutex_unlock(&files);
    return file;
}

static void give_back(struct file *file)
{
    pthread_mutex_lock(&files);
    int unused = --file->references == 0;
    pthread_mutex_unlock(&files);
    if (unused) {
        free(file->name);
        free(file->bytes);
        free(file);
    }
}

/* With the lock. */
static struct file *add(const char *name, size_t size)
{
    struct file *file = calloc(1, sizeof *file);
    file->node = ++last;
    file->name = strdup(name);
    file->references = 1;
    file->size = size;
    pthread_rwlock_init(&file->lock, NULL);
    if (size)
        file->bytes = memset(malloc(size), 7, size);
    file->next = names[bucket(name)];
    names[bucket(name)] = file;
    file->next_node = nodes[file->node % BUCKETS];
    nodes[file->node % BUCKETS] = file;
    return file;
}

static void resize(struct file *file, size_t size)
{
    file->bytes = realloc(file->bytes, size ? size : 1);
    if (size > file->size)
        memset(file->bytes + file->size, 0, size - file->size);
    file->size = size;
}

static struct stat attributes(fuse_ino_t node, size_t size)
{
    struct stat stat = {.st_ino = node, .st_nlink = 1, .st_blksize = 4096};
    stat.st_mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
    stat.st_size = (off_t)size;
    stat.st_blocks = (blkcnt_t)((size + 511) / 512);
    return stat;
}

static struct fuse_entry_param entry(const struct file *file)
{
    return (struct fuse_entry_param){
        .ino = file->node,
        .attr = attributes(file->node, file->size),
        .attr_timeout = VALID,
        .entry_timeout = VALID,
    };
}

static void init(void *data, struct fuse_conn_info *conn)
{
    (void)data;
    conn->want |= conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO |
                                   FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_AUTO_INVAL_DATA |
                                   FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    conn->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_POSIX_LOCKS);
    conn->max_background = 256;
    conn->congestion_threshold = 192;
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    (void)parent;
    note_channel(request);
    pthread_mutex_lock(&files);
    struct file *file = by_name(name);
    struct fuse_entry_param found = {0};
    if (file)
        found = entry(file);
    pthread_mutex_unlock(&files);
    if (file)
        fuse_reply_entry(request, &found);
    else
        fuse_reply_err(request, ENOENT);
}

static void get_attributes(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)info;
    size_t size = 0;
    if (node != FUSE_ROOT_ID) {
        struct file *file = take(node);
        if (!file) {
            fuse_reply_err(request, ENOENT);
            return;
        }
        size = file->size;
        give_back(file);
    }
    struct stat stat = attributes(node, size);
    fuse_reply_attr(request, &stat, VALID);
}

static void set_attributes(fuse_req_t request, fuse_ino_t node, struct stat *set, int valid,
                           struct fuse_file_info *info)
{
    struct file *file = take(node);
    if (file && valid & FUSE_SET_ATTR_SIZE) {
        pthread_rwlock_wrlock(&file->lock);
        resize(file, (size_t)set->st_size);
        pthread_rwlock_unlock(&file->lock);
    }
    if (file)
        give_back(file);
    get_attributes(request, node, info);
}

static void opened(struct fuse_file_info *info)
{
    info->keep_cache = 1;
    info->noflush = 1;
}

static void create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
                   struct fuse_file_info *info)
{
    (void)parent;
    (void)mode;
    pthread_mutex_lock(&files);
    struct fuse_entry_param made = entry(add(name, 0));
    pthread_mutex_unlock(&files);
    opened(info);
    fuse_reply_create(request, &made, info);
}

static void remove_name(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    (void)parent;
    pthread_mutex_lock(&files);
    struct file *file = by_name(name);
    if (file) {
        struct file **at = &names[bucket(name)];
        while (*at != file)
            at = &(*at)->next;
        *at = file->next;
        at = &nodes[file->node % BUCKETS];
        while (*at != file)
            at = &(*at)->next_node;
        *at = file->next_node;
    }
    pthread_mutex_unlock(&files);
    if (file)
        give_back(file);
    fuse_reply_err(request, file ? 0 : ENOENT);
}

static void open_file(fuse_req_t request, fuse_ino_t node, struct fuse_file_info *info)
{
    (void)node;
    opened(info);
    fuse_reply_open(request, info);
}

static void read_file(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset,
                      struct fuse_file_info *info)
{
    (void)info;
    note_channel(request);
    struct file *file = take(node);
    if (!file) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    pthread_rwlock_rdlock(&file->lock);
    size_t start = (size_t)offset < file->size ? (size_t)offset : file->size;
    size_t len = size < file->size - start ? size : file->size - start;
    fuse_reply_buf(request, file->bytes + start, len);
    pthread_rwlock_unlock(&file->lock);
    give_back(file);
}

static void write_file(fuse_req_t request, fuse_ino_t node, const char *bytes, size_t size,
                       off_t offset, struct fuse_file_info *info)
{
    (void)info;
    struct file *file = take(node);
    if (!file) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    pthread_rwlock_wrlock(&file->lock);
    if (file->size < (size_t)offset + size)
        resize(file, (size_t)offset + size);
    memcpy(file->bytes + offset, bytes, size);
    pthread_rwlock_unlock(&file->lock);
    give_back(file);
    fuse_reply_write(request, size);
}

static const struct fuse_lowlevel_ops operations = {
    .init = init,
    .lookup = look_up,
    .getattr = get_attributes,
    .setattr = set_attributes,
    .create = create,
    .unlink = remove_name,
    .open = open_file,
    .read = read_file,
    .write = write_file,
};

int main(int count, char **arguments)
{
    if (count != 6)
        return 2;
    int ring = !strcmp(arguments[5], "uring");
    char name[64];
    for (int number = 0; number < atoi(arguments[2]); number++) {
        snprintf(name, sizeof name, "stat-%d", number);
        add(name, 0);
        snprintf(name, sizeof name, "read-%d", number);
        add(name, SMALL);
    }
    add("large", (size_t)atoi(arguments[3]) << 20);
    add("target", (size_t)atoi(arguments[3]) << 20);
    char *options[] = {arguments[0], ring ? "-ofsname=fuse-servers,default_permissions,io_uring"
                                          : "-ofsname=fuse-servers,default_permissions"};
    struct fuse_args args = FUSE_ARGS_INIT(2, options);
    struct fuse_session *session =
        fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, arguments[1]))
        return 1;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 1);
    fuse_loop_cfg_set_max_threads(config, (unsigned)atoi(arguments[4]));
    fuse_loop_cfg_set_idle_threads(config, (unsigned)atoi(arguments[4]));
    int result = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    int as_told = ring ? by_ring > otherwise : by_ring == 0;
    if (!as_told)
        fprintf(stderr, "libfuse: %lu requests by ring, %lu otherwise\n", by_ring, otherwise);
    return result != 0 || !as_told;
}
