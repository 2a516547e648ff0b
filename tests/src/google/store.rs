//! Objects under generations, and uploads by parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::SystemTime,
};

use bytes::Bytes;
use md5::{Digest as _, Md5};

/// One version of an object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) generation: u64,
    pub(super) body: Bytes,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) modified: SystemTime,
}

#[derive(Debug)]
pub(super) struct Upload {
    pub(super) key: String,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) parts: BTreeMap<u16, Bytes>,
}

#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<String, Object>,
    pub(super) in_progress: BTreeMap<String, Upload>,
    /// Of objects and uploads.
    next: u64,
}

/// Why something is not done: a status and a code.
pub(super) type Refusal = (u16, &'static str);

/// Every part but the last has so many bytes at least.
const PART_LEN_MIN: usize = 5 * 1024 * 1024;

impl Default for Store {
    fn default() -> Self {
        // Google's are microseconds since 1970.
        Self { objects: BTreeMap::new(), in_progress: BTreeMap::new(), next: 1_763_970_000_000_000 }
    }
}

impl Store {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn put(
        &mut self,
        key: &str,
        body: Bytes,
        metadata: BTreeMap<String, String>,
    ) -> u64 {
        let generation = self.next();
        let object = Object { generation, body, metadata, modified: SystemTime::now() };
        self.objects.insert(key.to_owned(), object);
        generation
    }

    pub(super) fn object(&self, key: &str) -> Option<&Object> {
        self.objects.get(key)
    }

    pub(super) fn delete(&mut self, key: &str) -> Option<Object> {
        self.objects.remove(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    pub(super) fn uploads(&self) -> usize {
        self.in_progress.len()
    }

    /// Whether the object of a key is the one that a condition names; 0 is none.
    pub(super) fn matches(&self, key: &str, generation: u64) -> bool {
        self.object(key).map_or(0, |object| object.generation) == generation
    }

    pub(super) fn begin(&mut self, key: &str, metadata: BTreeMap<String, String>) -> String {
        let id = format!("ABPnz{}-x_y.z", self.next());
        let upload = Upload { key: key.to_owned(), metadata, parts: BTreeMap::new() };
        self.in_progress.insert(id.clone(), upload);
        id
    }

    /// An upload to this key.
    pub(super) fn upload(&mut self, key: &str, id: &str) -> Result<&mut Upload, Refusal> {
        let upload = self.in_progress.get_mut(id).filter(|upload| upload.key == key);
        upload.ok_or((404, "NoSuchUpload"))
    }

    /// Makes an object of those parts.
    pub(super) fn complete(
        &mut self,
        key: &str,
        id: &str,
        parts: &[(u16, String)],
    ) -> Result<u64, Refusal> {
        let upload = self.upload(key, id)?;
        let mut body = Vec::new();
        for (at, (number, tag)) in parts.iter().enumerate() {
            let part = upload.parts.get(number).filter(|part| tag_of(part) == *tag);
            let part = part.ok_or((400, "InvalidPart"))?;
            if part.len() < PART_LEN_MIN && at + 1 < parts.len() {
                return Err((400, "EntityTooSmall"));
            }
            body.extend_from_slice(part);
        }
        let metadata = upload.metadata.clone();
        self.in_progress.remove(id);
        Ok(self.put(key, body.into(), metadata))
    }

    /// Keys and common prefixes of one page, and where the next begins.
    pub(super) fn list(
        &self,
        prefix: &str,
        delimiter: Option<&str>,
        after: &str,
        max: usize,
    ) -> Page {
        let mut page = Page::default();
        let mut last = after.to_owned();
        for (key, object) in
            self.objects.range::<str, _>((Bound::Excluded(after), Bound::Unbounded))
        {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            let below = delimiter.and_then(|delimiter| rest.find(delimiter));
            let common = below.map(|at| key[..=prefix.len() + at].to_owned());
            // What the page before ended with, in common.
            let told =
                |common: &String| page.prefixes.contains(common) || after.starts_with(common);
            if common.as_ref().is_some_and(told) {
                last.clone_from(key);
                continue;
            }
            if page.objects.len() + page.prefixes.len() == max {
                page.next = Some(last);
                return page;
            }
            match common {
                Some(common) => drop(page.prefixes.insert(common)),
                None => page.objects.push((key.clone(), object.clone())),
            }
            last.clone_from(key);
        }
        page
    }
}

/// What a listing shows at once.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(String, Object)>,
    pub(super) prefixes: BTreeSet<String>,
    pub(super) next: Option<String>,
}

/// The entity tag of bytes.
pub(super) fn tag_of(body: &[u8]) -> String {
    format!("\"{:032x}\"", u128::from_be_bytes(Md5::digest(body).into()))
}
