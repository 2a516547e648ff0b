//! `millrace conflicts list`.

use millrace_protocol::bucket::{Conflict, ListConflicts};
use millrace_types::ByteLen;

use crate::{
    connection::Connection,
    context::Context,
    exit::Exit,
    output::{render, table},
    report::ConflictReport,
};

/// Asks and prints.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let conflicts: Vec<_> = all(&connection).await?.iter().map(ConflictReport::from).collect();
    context.output.result(&conflicts, || words(&conflicts))?;
    Ok(Exit::Done)
}

/// All conflicts of the file system. One that begins or ends meanwhile may be among them or not.
///
/// # Errors
/// Those of the request.
pub(super) async fn all(connection: &Connection) -> anyhow::Result<Vec<Conflict>> {
    let mut conflicts = Vec::new();
    let mut after = None;
    loop {
        let page = connection.request(&ListConflicts { after }).await?;
        after = page.conflicts.last().map(|conflict| conflict.inode);
        conflicts.extend(page.conflicts);
        if !page.more || after.is_none() {
            return Ok(conflicts);
        }
    }
}

fn words(conflicts: &[ConflictReport]) -> String {
    if conflicts.is_empty() {
        return "no conflicts".to_owned();
    }
    let mut files = table(&["PATH", "SIZE HERE", "WRITTEN HERE", "OBJECT"]);
    for conflict in conflicts {
        let removed = || format!("inode {}, which has no name any more", conflict.inode);
        files.add_row([
            conflict.path.clone().unwrap_or_else(removed),
            ByteLen(conflict.size_bytes).to_string(),
            conflict.modified.clone(),
            conflict.key.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    format!("{}\ndecide with `millrace conflicts resolve PATH --keep local|bucket`", render(&files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_a_line_with_what_to_do_below() {
        assert_eq!(words(&[]), "no conflicts");
        let conflict = ConflictReport {
            path: Some("/run/model.pt".to_owned()),
            inode: 7,
            size_bytes: 1 << 20,
            modified: "2026-11-21T04:00:00Z".to_owned(),
            key: Some("run/model.pt".to_owned()),
        };
        let said = words(&[conflict, ConflictReport { path: None, key: None, ..gone() }]);
        assert!(said.contains("/run/model.pt") && said.contains("1 MiB"), "{said}");
        assert!(said.contains("inode 8, which has no name") && said.ends_with("bucket`"), "{said}");
    }

    fn gone() -> ConflictReport {
        let (modified, inode, size_bytes) = (String::new(), 8, 0);
        ConflictReport { path: None, inode, size_bytes, modified, key: None }
    }
}
