//! Requests about files: how they stand against their bucket, and what targets tell of them.

use millrace_protocol::{
    admin::{ResolveConflict, ShowState},
    ahead::{MISSES_MAX, ReportMisses},
    bucket::ShowFile,
    cluster::{CHANGED_CONTENTS_MAX, ReportChanged},
    known_state::ShowKnownState,
    session::Done,
};
use millrace_types::{ErrorKind, Failure};

hydrated! {
    ShowFile [caller] => |hydration, top, it| hydration.show_file(&top, &it).await?;
    ShowState [caller] => |hydration, top, it| hydration.show_state(&top, &it).await?;
    ShowKnownState [of.caller] => |hydration, top, it| {
        hydration.show_known_state(&top, &it).await?
    };
    ResolveConflict [caller] => |hydration, top, it| {
        hydration.resolve_conflict(&top, &it).await?
    };
    ReportChanged => |hydration, _, it| {
        check_count(it.contents.len(), CHANGED_CONTENTS_MAX, "contents")?;
        hydration.note_changed(&it.contents);
        Done::default()
    };
    ReportMisses => |hydration, _, it| {
        check_count(it.misses.len(), MISSES_MAX, "misses")?;
        hydration.note_misses(&it.misses);
        Done::default()
    };
}

/// Whether a report names no more than it may of something.
fn check_count(count: usize, most: usize, what: &str) -> Result<(), Failure> {
    if count <= most {
        return Ok(());
    }
    let text = format!("a report names at most {most} {what}");
    Err(Failure::new(ErrorKind::InvalidArgument, text))
}
