//! The targets in the settings of a daemon: read, and one more written so that all else stays as
//! the person who wrote it left it.

use std::{fmt, path::PathBuf};

use anyhow::bail;
use millrace_types::{ByteLen, TargetId};
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

/// The settings of a daemon, with their comments.
#[derive(Debug)]
pub(super) struct Settings(DocumentMut);

/// A target that is to be named.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) directory: &'a str,
    pub(super) capacity: Option<ByteLen>,
    pub(super) id: Option<TargetId>,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// For what is no TOML.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(Self(text.parse()?))
    }

    /// Where the targets lie that they name.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let short = self.0.get("data").and_then(Item::as_str);
        let tables: Vec<&str> = match self.0.get("target") {
            Some(Item::ArrayOfTables(tables)) => {
                tables.iter().filter_map(|table| table.get("directory")?.as_str()).collect()
            }
            Some(Item::Value(Value::Array(tables))) => {
                let tables = tables.iter().filter_map(Value::as_inline_table);
                tables.filter_map(|table| table.get("directory")?.as_str()).collect()
            }
            _ => Vec::new(),
        };
        short.into_iter().chain(tables).map(PathBuf::from).collect()
    }

    /// Names one more, behind the others.
    ///
    /// # Errors
    /// When `target` is something else.
    pub(super) fn add(&mut self, entry: &Entry<'_>) -> anyhow::Result<()> {
        let notes = self.take_notes();
        let tables = Item::ArrayOfTables(ArrayOfTables::new());
        match self.0.entry("target").or_insert(tables) {
            Item::ArrayOfTables(tables) => {
                let mut table = Table::new();
                for (key, value) in entry.values() {
                    table.insert(key, Item::Value(value));
                }
                if let Some(notes) = notes {
                    table.decor_mut().set_prefix(notes);
                }
                tables.push(table);
            }
            Item::Value(Value::Array(tables)) => {
                let mut table = InlineTable::new();
                for (key, value) in entry.values() {
                    table.insert(key, value);
                }
                tables.push(table);
            }
            _ => bail!("`target` is no list of tables there"),
        }
        Ok(())
    }

    /// Takes the comments behind the last table of a target, such as keys that are not in force,
    /// from what follows, to which they would belong otherwise: what comes in between comes behind
    /// them. None where there are none.
    fn take_notes(&mut self) -> Option<String> {
        let Some(Item::ArrayOfTables(tables)) = self.0.get("target") else { return None };
        let last = tables.iter().last()?.position()?;
        let mut next: Option<usize> = None;
        visit(&mut self.0, &mut |table| {
            let at = table.position().filter(|&at| at > last);
            next = at.filter(|&at| next.is_none_or(|next| at < next)).or(next);
        });
        let Some(next) = next else {
            // Nothing follows.
            let notes = self.0.trailing().as_str()?.to_owned();
            if notes.trim().is_empty() {
                return None;
            }
            self.0.set_trailing("");
            let end = if notes.ends_with('\n') { "\n" } else { "\n\n" };
            return Some(notes + end);
        };
        let mut notes = None;
        visit(&mut self.0, &mut |table| {
            if table.position() == Some(next) {
                notes = take_notes_before(table);
            }
        });
        notes
    }
}

/// Shows all tables with a header of their own, each before those in it.
fn visit(table: &mut Table, see: &mut dyn FnMut(&mut Table)) {
    let mut shown = |table: &mut Table| {
        if !table.is_implicit() && !table.is_dotted() {
            see(table);
        }
        visit(table, see);
    };
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(table) => shown(table),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(&mut shown),
            _ => {}
        }
    }
}

/// Takes what stands before a table and is no part of it: up to the last empty line.
fn take_notes_before(table: &mut Table) -> Option<String> {
    let text = table.decor().prefix()?.as_str()?;
    let (mut at, mut last) = (0, None);
    for line in text.split_inclusive('\n') {
        if line.ends_with('\n') && line.trim().is_empty() {
            last = Some(at);
        }
        at += line.len();
    }
    let (notes, own) = text.split_at(last?);
    if notes.trim().is_empty() {
        return None;
    }
    let (notes, own) = (format!("{notes}\n"), own.to_owned());
    table.decor_mut().set_prefix(own);
    Some(notes)
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Entry<'_> {
    fn values(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let bytes = self.capacity.map(|capacity| Value::from(capacity.0.to_string()));
        let id = self.id.map(|id| Value::from(id.to_string()));
        [("directory", Some(Value::from(self.directory))), ("capacity", bytes), ("id", id)]
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMENTED: &str = "\
# Of rack 3.
listen = \"[::]:7441\"   # the fast one

[cluster]
servers = [\"meta-1:7440\"] # one
identity = \"/etc/millrace/target.pem\"

# The first disk.
[[target]]
directory = \"/srv/0\" # bay 0

# Checks.
[scrub]
# rate = \"32MiB\"
interval = \"24h\"
";

    fn added(text: &str, entry: &Entry<'_>) -> String {
        let mut settings = Settings::parse(text).unwrap();
        settings.add(entry).unwrap();
        settings.to_string()
    }

    const PLAIN: Entry<'_> = Entry { directory: "/srv/1", capacity: None, id: None };

    #[test]
    fn comments_and_order_stay_and_the_entry_comes_behind_the_others() {
        let text = added(COMMENTED, &PLAIN);
        let (before, after) = COMMENTED.split_once("\n# Checks.").unwrap();
        let expected = format!("{before}\n[[target]]\ndirectory = \"/srv/1\"\n\n# Checks.{after}");
        assert_eq!(text, expected);
        let settings = Settings::parse(&text).unwrap();
        assert_eq!(settings.directories(), ["/srv/0", "/srv/1"].map(PathBuf::from));
        let third = added(&text, &Entry { directory: "/srv/2", ..PLAIN });
        assert!(third.find("/srv/1") < third.find("/srv/2"), "{third}");
    }

    #[test]
    fn keys_that_are_not_in_force_stay_with_their_table() {
        let shipped = include_str!("../../../../config/storage-target.toml");
        let (before, after) = shipped.split_once("\n[scrub]").unwrap();
        assert!(before.ends_with('\n'), "an empty line is before it");
        let expected = format!("{before}\n[[target]]\ndirectory = \"/srv/1\"\n\n[scrub]{after}");
        assert_eq!(added(shipped, &PLAIN), expected);

        let first = "[[target]]\ndirectory = \"/srv/0\"\n";
        let new = "[[target]]\ndirectory = \"/srv/1\"\n";
        let hints = "\n# Of its disk.\n# capacity = \"1GiB\"\n\n# id = \"0\"\n";
        let with = format!("{first}{hints}\n# Checks.\n[scrub]\n");
        let expected = format!("{first}{hints}\n{new}\n# Checks.\n[scrub]\n");
        assert_eq!(added(&with, &PLAIN), expected);
        let last = format!("[scrub]\n\n{first}{hints}");
        assert_eq!(added(&last, &PLAIN), format!("{last}\n{new}"));
    }

    #[test]
    fn other_forms_of_settings_are_kept_too() {
        let short = added("data = \"/srv/0\"\n\n[cluster]\nservers = []\n# end\n", &PLAIN);
        let table = "[[target]]\ndirectory = \"/srv/1\"\n";
        assert!(short.starts_with("data = \"/srv/0\"\n") && short.contains(table), "{short}");
        assert!(short.contains("# end\n"), "{short}");
        let both = Settings::parse(&short).unwrap().directories();
        assert_eq!(both, ["/srv/0", "/srv/1"].map(PathBuf::from));

        let inline = added("target = [{ directory = \"/srv/0\" }]\n", &PLAIN);
        let both = Settings::parse(&inline).unwrap().directories();
        assert_eq!(both, ["/srv/0", "/srv/1"].map(PathBuf::from));
        assert!(Settings::parse("target = 1").unwrap().add(&PLAIN).is_err());
        assert!(Settings::parse("target = [").is_err());
    }

    #[test]
    fn whatever_a_path_holds_reads_back_and_so_do_size_and_id() {
        let id = TargetId([7; 8]);
        let odd =
            Entry { directory: "/srv/a \"b\"\\\n", capacity: Some(ByteLen(1 << 30)), id: Some(id) };
        let text = added("", &odd);
        let settings = Settings::parse(&text).unwrap();
        assert_eq!(settings.directories(), [PathBuf::from(odd.directory)]);
        assert!(text.contains("capacity = \"1073741824\""), "{text}");
        assert!(text.contains(&format!("id = \"{id}\"")), "{text}");
    }
}
