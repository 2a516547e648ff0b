//! Who uses pages that are wrong: asked for in a second walk, because a bit for each page cannot
//! say it.

use std::collections::BTreeMap;

use super::{
    contents::{Contents, REWRITE},
    report::{Kind, Report},
};
use crate::{
    format::{
        extent::Extent,
        section::{Section, SectionKey},
        table::{Entry, TableKey},
    },
    image::{Tree, Words},
};

/// Names the pages that have two owners, and those that are free in the maps and have one.
pub(super) fn report(tree: &Tree<'_>, contents: &Contents<'_>, report: &Report<'_>) {
    let free = Contents::kept(&contents.free_although_used);
    let twice = Contents::kept(&contents.twice);
    if free.is_empty() && twice.is_empty() {
        return;
    }
    let asked: Vec<Extent> =
        free.iter().copied().chain(twice.iter().map(|(_, extent)| *extent)).collect();
    let owners = owners(tree, &asked);
    let of = |extent: Extent| owners.get(&extent.first).map_or(&[][..], Vec::as_slice);
    for &(second, extent) in twice {
        let first = match of(extent).iter().find(|&&owner| owner != second) {
            Some(first) => Words(*first).to_string(),
            None => "the index".to_owned(),
        };
        let text = format!("{} used twice: by {first} and by {}", are(extent), Words(second));
        report.damage(Kind::Pages, extent.first, text, REWRITE);
    }
    for &extent in free {
        let owner = of(extent).first().map_or_else(String::new, |owner| Words(*owner).to_string());
        let text = format!("{} free in the free map, and in use: by {owner}", are(extent));
        report.damage(Kind::FreeMap, extent.first, text, REWRITE);
    }
    let beyond: Vec<Extent> = contents.twice.iter().map(|(_, extent)| *extent).collect();
    let more = Contents::beyond(&contents.free_although_used) + Contents::beyond(&beyond);
    if more > 0 {
        let text = format!("{more} more pages are used twice, or free and in use");
        report.damage(Kind::Pages, None, text, REWRITE);
    }
}

fn are(extent: Extent) -> String {
    format!("{} {}", Words(extent), if extent.pages == 1 { "is" } else { "are" })
}

/// The sections that name any page of each extent, by its first page.
fn owners(tree: &Tree<'_>, asked: &[Extent]) -> BTreeMap<u64, Vec<SectionKey>> {
    let mut owners: BTreeMap<u64, Vec<SectionKey>> = BTreeMap::new();
    sections(tree, |key, section| {
        for extent in section.extents() {
            for asked in asked.iter().filter(|asked| overlap(**asked, extent)) {
                let known = owners.entry(asked.first).or_default();
                if known.last() != Some(&key) {
                    known.push(key);
                }
            }
        }
    });
    owners
}

fn overlap(one: Extent, other: Extent) -> bool {
    one.first < other.end() && other.first < one.end()
}

/// All sections that can be read.
fn sections(tree: &Tree<'_>, mut visit: impl FnMut(SectionKey, &Section)) {
    tree.walk(|found| {
        let Ok(leaf) = found else { return };
        for at in 0..leaf.node.count() {
            let key = leaf.node.key(at);
            if let Ok(TableKey::Section(_)) = TableKey::decode(key)
                && let Ok(Entry::Section(key, section)) = Entry::decode(key, &leaf.node.value(at))
            {
                visit(key, &section);
            }
        }
    });
}
