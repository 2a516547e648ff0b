//! `millrace pin [PATH]` and `millrace unpin PATH`.

use std::path::Path;

use anyhow::Context as _;
use millrace_protocol::release::{ListPins, SetPin};

use crate::{
    context::{CALLER, Context, at},
    exit::Exit,
    output::{path_text, shown},
    report::{PinReport, PinnedReport},
};

/// Pins a path or ends that, and prints how it stands now.
pub(crate) async fn set(context: &Context, path: &Path, pinned: bool) -> anyhow::Result<Exit> {
    let (connection, place) = context.at(path).await?;
    let request = SetPin { caller: CALLER, path: place, pinned };
    let reply = connection.request(&request).await.context(at(path))?;
    let report = PinReport::new(path.display().to_string(), pinned, &reply);
    context.output.result(&report, || words(&report))?;
    Ok(Exit::Done)
}

/// Prints what is pinned.
pub(crate) async fn list(context: &Context) -> anyhow::Result<Exit> {
    let connection = context.cluster().await?;
    let mut pins = Vec::new();
    let mut after = None;
    loop {
        let page = connection.request(&ListPins { after }).await?;
        after = page.pins.last().map(|(inode, _)| *inode);
        pins.extend(page.pins.into_iter().map(|(inode, path)| PinnedReport {
            path: (!path.is_empty()).then(|| path_text(&path)),
            inode: inode.0,
        }));
        if !page.more || after.is_none() {
            break;
        }
    }
    context.output.result(&pins, || match pins.is_empty() {
        true => "nothing is pinned; `millrace pin PATH` does".to_owned(),
        false => pins.iter().map(line).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(Exit::Done)
}

fn line(pin: &PinnedReport) -> String {
    let removed = || format!("inode {}, which has no name any more", pin.inode);
    pin.path.as_deref().map_or_else(removed, shown)
}

fn words(report: &PinReport) -> String {
    let path = shown(&report.path);
    let state = match (report.pinned, report.changed) {
        (true, true) => format!("{path} is pinned: what is here of it stays here"),
        (true, false) => format!("{path} was pinned already"),
        (false, true) => format!("{path} is not pinned any more"),
        (false, false) => format!("{path} was not pinned"),
    };
    match report.above.as_slice() {
        [] => state,
        above => {
            let above: Vec<_> = above.iter().map(|path| shown(path)).collect();
            format!("{state}; above it is pinned: {}", above.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::release::PinReply;

    use super::*;

    #[test]
    fn the_words_say_what_is_new_and_what_else_holds() {
        let said = |pinned, changed, above: &[&str]| {
            let above = above.iter().map(|path| path.as_bytes().to_vec()).collect();
            words(&PinReport::new("mr:/a".to_owned(), pinned, &PinReply { changed, above }))
        };
        assert!(said(true, true, &[]).starts_with("mr:/a is pinned:"));
        assert!(said(true, false, &[]).contains("already"));
        assert_eq!(said(false, true, &[]), "mr:/a is not pinned any more");
        assert!(said(false, true, &["/t", "/t/u"]).ends_with("above it is pinned: /t, /t/u"));
        assert!(said(true, true, &["/t\n"]).ends_with("above it is pinned: /t\\n"));
    }

    #[test]
    fn a_pin_is_a_line_whatever_its_name_holds() {
        let pin = PinnedReport { path: Some("/a\u{1b}[2J\nb".to_owned()), inode: 7 };
        assert_eq!(line(&pin), "/a\\u{1b}[2J\\nb");
        let gone = PinnedReport { path: None, inode: 7 };
        assert!(line(&gone).contains("inode 7"));
    }
}
