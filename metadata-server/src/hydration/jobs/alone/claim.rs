//! The links that somebody works with.
//!
//! Two links whose places in a bucket are one, or lie one in the other, show the same objects: they
//! have one turn. What lies where is told by the URLs alone, whatever the endpoints: of a place
//! under two names nobody knows that it is one.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use millrace_types::{Failure, InodeId, LinkId};

use crate::{
    hydration::{
        destination::link_of,
        import::{broken, spec_of},
        links::link_id,
    },
    namespace::{Inode, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

/// Some links, and what of their buckets they show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::hydration::jobs) struct Claim {
    links: BTreeSet<LinkId>,
    /// URLs, each with a `/` at its end.
    places: BTreeSet<String>,
}

/// What jobs touch, as a view shows it. Links are read once, however many jobs wait above them.
pub(in crate::hydration::jobs) struct Claims<'a> {
    view: &'a dyn View,
    links: Option<Vec<Linked>>,
    known: HashMap<InodeId, Arc<Claim>>,
}

/// A link whose directory is there.
struct Linked {
    id: LinkId,
    record: LinkRecord,
    directory: Inode,
}

impl Claim {
    /// One link; nothing when it is gone.
    ///
    /// # Errors
    /// When the store is broken.
    pub(in crate::hydration::jobs) fn of_link(
        view: &dyn View,
        link: LinkId,
    ) -> Result<Self, Failure> {
        let mut claim = Self::default();
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        if let Some(record) = record {
            claim.add(link, &record);
        }
        Ok(claim)
    }

    fn add(&mut self, link: LinkId, record: &LinkRecord) {
        let url = match spec_of(&record.bucket) {
            Ok(spec) => spec.url_of(spec.prefix()),
            // Nobody works with that bucket, and it must not hold up the others.
            Err(_) => record.bucket.url.clone(),
        };
        self.links.insert(link);
        self.places.insert(format!("{}/", url.trim_end_matches('/')));
    }

    /// The buckets that it shows anything of. Those of `file:` are one.
    pub(in crate::hydration::jobs) fn buckets(&self) -> BTreeSet<&str> {
        self.places.iter().map(|place| bucket_of(place)).collect()
    }

    /// Whether a link is one of these.
    pub(in crate::hydration::jobs) fn has(&self, link: LinkId) -> bool {
        self.links.contains(&link)
    }

    /// Whether both must not work at the same time.
    pub(in crate::hydration::jobs) fn meets(&self, other: &Self) -> bool {
        let (few, many) = match self.places.len() <= other.places.len() {
            true => (self, other),
            false => (other, self),
        };
        few.places.iter().any(|place| many.shows(place))
    }

    /// Whether anything at a place is shown.
    fn shows(&self, place: &str) -> bool {
        let from: (Bound<&str>, Bound<&str>) = (Bound::Included(place), Bound::Unbounded);
        let next = self.places.range::<str, _>(from).next();
        let mut above = place.match_indices('/').map(|(at, _)| &place[..=at]);
        next.is_some_and(|next| next.starts_with(place))
            || above.any(|above| self.places.contains(above))
    }
}

impl<'a> Claims<'a> {
    pub(in crate::hydration::jobs) fn new(view: &'a dyn View) -> Self {
        Self { view, links: None, known: HashMap::new() }
    }

    /// What a job touches: the link that its top lies in, or all links below that.
    ///
    /// # Errors
    /// When the store is broken.
    pub(in crate::hydration::jobs) fn of_job(
        &mut self,
        top: InodeId,
    ) -> Result<Arc<Claim>, Failure> {
        if let Some(known) = self.known.get(&top) {
            return Ok(Arc::clone(known));
        }
        let claim = Arc::new(self.look(top)?);
        self.known.insert(top, Arc::clone(&claim));
        Ok(claim)
    }

    fn look(&mut self, top: InodeId) -> Result<Claim, Failure> {
        let view = self.view;
        let mut claim = Claim::default();
        let Some(inode) = tree::find(view, top).map_err(broken)? else { return Ok(claim) };
        if let Some(link) = link_of(view, &inode)? {
            return Claim::of_link(view, link);
        }
        // There is none below a file.
        if !inode.is_directory() {
            return Ok(claim);
        }
        let links = match self.links.take() {
            Some(links) => links,
            None => linked(view)?,
        };
        for Linked { id, record, directory } in self.links.insert(links) {
            if tree::is_below(view, directory, top).map_err(broken)? {
                claim.add(*id, record);
            }
        }
        Ok(claim)
    }
}

fn linked(view: &dyn View) -> Result<Vec<Linked>, Failure> {
    let known = tree::scan::<LinkRecord>(view, &keys::links(), usize::MAX).map_err(broken)?;
    let mut links = Vec::with_capacity(known.len());
    for (key, record) in known {
        let directory = tree::find(view, record.directory).map_err(broken)?;
        let id = link_id(&key, &keys::links());
        links.extend(directory.map(|directory| Linked { id, record, directory }));
    }
    Ok(links)
}

/// The scheme and the name of the bucket of a place.
fn bucket_of(place: &str) -> &str {
    let name = place.find("://").map_or(0, |at| at + "://".len());
    match place[name..].find('/') {
        Some(len) => &place[..name + len],
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        admin::AttributeSource,
        cluster::{Bucket, LinkMode},
    };

    use super::*;

    impl Claim {
        /// Links with these ids, which show these places.
        pub(in crate::hydration::jobs) fn of(links: &[(u32, &str)]) -> Arc<Self> {
            Arc::new(Self {
                links: links.iter().map(|(link, _)| LinkId(*link)).collect(),
                places: links.iter().map(|(_, place)| (*place).to_owned()).collect(),
            })
        }
    }

    #[test]
    fn places_meet_that_are_one_or_lie_in_each_other() {
        let meet = |one: &[(u32, &str)], other: &[(u32, &str)]| {
            let (one, other) = (Claim::of(one), Claim::of(other));
            assert_eq!(one.meets(&other), other.meets(&one), "{one:?} {other:?}");
            one.meets(&other)
        };
        let [run, runs] = [(1, "s3://data/run/"), (2, "s3://data/runs/")];
        assert!(meet(&[run], &[run]) && !meet(&[run], &[runs]));
        assert!(meet(&[run], &[(3, "s3://data/run/7/")]));
        assert!(meet(&[run, runs], &[(3, "s3://data/")]));
        assert!(!meet(&[run], &[(3, "gs://data/run/")]) && !meet(&[run], &[(3, "s3://date/run/")]));
        assert!(meet(&[(1, "file:/")], &[(2, "file:///data/")]), "the root of a host");
        let others = [(3, "s3://a/"), (4, "s3://data/run-8/"), (5, "s3://z/")];
        assert!(!meet(&[run, runs], &others));
        assert!(meet(&[(9, "s3://data/run-8/x/"), runs], &others));
        assert!(!meet(&[], &[run]), "nothing is in nobody's way");
    }

    #[test]
    fn a_bucket_is_one_wherever_in_it_a_place_is() {
        let claim = Claim::of(&[
            (1, "s3://data/run/"),
            (2, "s3://data/"),
            (3, "gs://data/x/"),
            (4, "file:///a/"),
            (5, "file:///b/c/"),
        ]);
        let buckets: Vec<&str> = claim.buckets().into_iter().collect();
        assert_eq!(buckets, ["file://", "gs://data", "s3://data"]);
    }

    #[test]
    fn a_link_whose_url_says_nothing_has_a_place_nevertheless() {
        let bucket = Bucket {
            url: "unknown://data/run".to_owned(),
            endpoint: None,
            region: None,
            credentials: None,
        };
        let record = LinkRecord {
            directory: InodeId::ROOT,
            bucket,
            mode: LinkMode::ImportExport,
            refresh_seconds: 0,
            attributes: AttributeSource::Objects,
            removing: false,
        };
        let mut claim = Claim::default();
        claim.add(LinkId(1), &record);
        assert!(claim.has(LinkId(1)) && claim.meets(&Claim::of(&[(2, "unknown://data/")])));
    }
}
