//! Listings taken apart and put together in another way.
//!
//! Only what the servers of these tests send is understood: elements without attributes, none
//! within one of the same name.

use std::collections::HashMap;

use super::{fault::ListFault, request::Dialect};

/// Pages that were made out of listings, by the token that asks for them.
#[derive(Debug, Default)]
pub(super) struct Pages {
    by_token: HashMap<String, String>,
    made: u64,
}

impl Pages {
    /// The page that a token of ours stands for.
    pub(super) fn page(&self, token: &str) -> Option<&str> {
        self.by_token.get(token).map(String::as_str)
    }

    /// The first page of a listing, with the others kept for who asks for them.
    pub(super) fn damage(&mut self, document: &str, dialect: Dialect, fault: ListFault) -> String {
        let listing = Listing::parse(document, dialect);
        self.made += 1;
        let token = |page: usize| format!("page-{}-{page}", self.made);
        match fault {
            // Answered by who remembers listings; without one, as it is.
            ListFault::Stale => document.to_owned(),
            ListFault::Empty => listing.render(&[], &Next::End),
            ListFault::Torn => document[..document.len() / 2].to_owned(),
            ListFault::DeadEnd(len) => {
                let len = len.min(listing.entries.len());
                listing.render(&listing.entries[..len], &Next::Nowhere)
            }
            ListFault::Circle(len) => {
                let len = len.min(listing.entries.len());
                let page = listing.render(&listing.entries[..len], &Next::Page(token(0)));
                self.by_token.insert(token(0), page.clone());
                page
            }
            ListFault::Pages(len) => {
                let count = listing.entries.len().div_ceil(len).max(1);
                let pages: Vec<_> = (0..count)
                    .map(|page| {
                        let from = (page * len).saturating_sub(1);
                        let end = (page * len + len).min(listing.entries.len());
                        let twice = listing.entries[from..end].iter().flat_map(|one| [*one, *one]);
                        let last = page + 1 == count;
                        let next = if last { Next::End } else { Next::Page(token(page + 1)) };
                        listing.render(&twice.rev().collect::<Vec<_>>(), &next)
                    })
                    .collect();
                let tokens = (0..count).map(token).collect::<Vec<_>>();
                self.by_token.extend(tokens.into_iter().zip(pages.iter().cloned()));
                pages.into_iter().next().unwrap_or_default()
            }
        }
    }
}

/// What comes after a page.
enum Next {
    End,
    Page(String),
    /// More, they say, and not how to get it.
    Nowhere,
}

struct Listing<'a> {
    dialect: Dialect,
    /// Up to the first entry or fact.
    begin: &'a str,
    /// Each key or common prefix.
    entries: Vec<&'a str>,
    /// Elements that say something of all, such as how keys are encoded.
    facts: Vec<&'a str>,
}

/// The elements of a listing that are kept besides its entries.
const FACTS: [&str; 6] = ["Name", "Prefix", "Delimiter", "EncodingType", "MaxKeys", "MaxResults"];

impl<'a> Listing<'a> {
    fn parse(document: &'a str, dialect: Dialect) -> Self {
        let root = match dialect {
            Dialect::S3 => "<ListBucketResult",
            Dialect::Azure => "<EnumerationResults",
        };
        let opened = document.find(root).unwrap_or(0);
        let inner = document[opened..].find('>').map_or(0, |at| opened + at + 1);
        let begin = &document[..inner];
        let mut listing = Self { dialect, begin, entries: Vec::new(), facts: Vec::new() };
        listing.take(&document[inner..]);
        listing
    }

    /// Takes elements that stand one after the other.
    fn take(&mut self, mut rest: &'a str) {
        while let Some(start) = rest.find('<') {
            rest = &rest[start..];
            let Some(opened) = rest.find('>') else { break };
            if rest[..opened].ends_with('/') {
                rest = &rest[opened + 1..];
                continue;
            }
            let name = rest[1..opened].split(' ').next().unwrap_or_default();
            let close = format!("</{name}>");
            let Some(end) = rest.find(&close) else { break };
            let (element, behind) = rest.split_at(end + close.len());
            match name {
                "Contents" | "CommonPrefixes" | "Blob" | "BlobPrefix" => self.entries.push(element),
                "Blobs" => self.take(&rest[opened + 1..end]),
                name if FACTS.contains(&name) => self.facts.push(element),
                _ => {}
            }
            rest = behind;
        }
    }

    fn render(&self, entries: &[&str], next: &Next) -> String {
        let more = !matches!(next, Next::End);
        let token = match next {
            Next::Page(token) => token.as_str(),
            Next::End | Next::Nowhere => "",
        };
        let (begin, facts, entries) = (self.begin, self.facts.concat(), entries.concat());
        match self.dialect {
            Dialect::Azure => format!(
                "{begin}{facts}<Blobs>{entries}</Blobs><NextMarker>{token}</NextMarker>\
                 </EnumerationResults>"
            ),
            Dialect::S3 => {
                let token = match token {
                    "" => String::new(),
                    token => format!("<NextContinuationToken>{token}</NextContinuationToken>"),
                };
                format!(
                    "{begin}{facts}{entries}<IsTruncated>{more}</IsTruncated>{token}\
                     </ListBucketResult>"
                )
            }
        }
    }
}
