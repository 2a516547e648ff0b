//! One key of every table; numbers differ in every byte that they have.

use millrace_metadata_server::store::keys;
use millrace_types::{
    GroupId, HostId, InodeId, JobId, KeyId, LinkId, LogIndex, PoolId, SessionId, TargetId,
};

use super::Sample;

const INODE: InodeId = InodeId(0x0102_0304_0506_0708);
const PARENT: InodeId = InodeId(0x1112_1314_1516_1718);
const SESSION: SessionId = SessionId(0x2122_2324_2526_2728);
const TARGET: TargetId = TargetId([0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]);
const NUMBER: u64 = 0x4142_4344_4546_4748;

pub(super) fn samples() -> Vec<Sample> {
    let pool = PoolId(0x5152);
    vec![
        Sample::key("applied", keys::applied()),
        Sample::key("cookie", keys::cookie(INODE, NUMBER)),
        Sample::key("entry", keys::entry(INODE, b"name \xff")),
        Sample::key("export", keys::export(INODE)),
        Sample::key("file_system", keys::file_system()),
        Sample::key("group", keys::group(pool, GroupId(0x6162_6364))),
        Sample::key("host", keys::host(HostId([0x71; 16]))),
        Sample::key("inode", keys::inode(INODE)),
        Sample::key("job", keys::job(JobId(NUMBER))),
        Sample::key("signing_key", keys::signing_key(KeyId(0x8182_8384))),
        Sample::key("link", keys::link(LinkId(0x9192_9394))),
        Sample::key("name", keys::name(INODE, PARENT, b"name \xff")),
        Sample::key("open", keys::open(INODE, SESSION)),
        Sample::key("pool", keys::pool(pool)),
        Sample::key("reclaim", keys::reclaim(TARGET, NUMBER)),
        Sample::key("outcome", keys::outcome(SESSION, NUMBER)),
        Sample::key("session", keys::session(SESSION)),
        Sample::key("target", keys::target(TARGET)),
        Sample::key("conflict", keys::conflict(INODE)),
        Sample::key("trim", keys::trim(INODE)),
        Sample::key("whiteout", keys::whiteout(INODE, b"name \xff")),
        Sample::key("moved_file", keys::moved_file(INODE, b"name \xff")),
        Sample::key("sweep", keys::sweep(INODE)),
        Sample::key("nameable", keys::nameable(INODE)),
        Sample::key("pin", keys::pin(INODE)),
        Sample::key("shown", keys::shown(TARGET)),
        Sample::key("lost_target", keys::lost_target(TARGET)),
        Sample::key("auto_export", keys::auto_export(LinkId(5))),
        Sample::key("fetch", keys::fetch(LinkId(5))),
        Sample::key("left_out", keys::left_out(INODE)),
        Sample::key("refresh_interval", keys::refresh_interval(LinkId(5))),
        Sample::key("discard", keys::discard(LinkId(5))),
        Sample::key("selection", keys::selection(JobId(NUMBER))),
        Sample::key("publication", keys::publication(JobId(NUMBER))),
        Sample::key("job_options", keys::job_options(JobId(NUMBER))),
        Sample::key("job_detail", keys::job_detail(JobId(NUMBER))),
        Sample::key("contents", keys::contents(INODE)),
        Sample::key("copy", keys::copy(JobId(NUMBER), INODE)),
        Sample::key("delete_propagation", keys::delete_propagation(LinkId(5))),
        Sample::key("deletion", keys::deletion(LinkId(5), "run/model.pt")),
        Sample::key("xattr", keys::xattr(INODE, b"user.name")),
        Sample::key("run", keys::run(LogIndex(NUMBER))),
        Sample::key("distrust", keys::distrust()),
        Sample::key("restores", keys::restores()),
        Sample::key("opened", keys::opened(SESSION, INODE)),
        Sample::key("keeper", keys::keeper(SESSION)),
        Sample::key("unused", keys::unused(JobId(NUMBER))),
        Sample::key("states", keys::states(JobId(NUMBER))),
        Sample::key("pristine", keys::pristine(INODE)),
    ]
}
