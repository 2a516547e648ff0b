//! One file's object asked for again, and what the file makes of the answer.

use millrace_object_source::PosixAttributes;
use millrace_protocol::cluster;
use millrace_types::{ContentGeneration, ErrorKind, Failure, InodeId};

use super::{Environment, Importer, broken, origin_of};
use crate::{
    command::{Command, FoundObject, Observation, ObserveObject, Outcome},
    hydration::{
        destination::destination,
        own::{OwnMark, is_ahead},
    },
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

/// Where a file's object is, and which version of it the file stands against.
#[derive(Debug, Clone)]
pub(in crate::hydration) struct Object {
    pub(in crate::hydration) inode: Inode,
    pub(in crate::hydration) link: millrace_types::LinkId,
    pub(in crate::hydration) bucket: cluster::Bucket,
    pub(in crate::hydration) key: String,
    pub(in crate::hydration) known: Option<String>,
    pub(in crate::hydration) generation: ContentGeneration,
    /// Whether the file was moved away from its object: what becomes of that is not its affair.
    pub(in crate::hydration) elsewhere: bool,
}

impl Object {
    /// The object of a file; `None` where the file is gone or no bucket could have it.
    pub(in crate::hydration) fn of(view: &dyn View, id: InodeId) -> Result<Option<Self>, Failure> {
        let Some(inode) = tree::find(view, id).map_err(broken)? else { return Ok(None) };
        let Body::File(body) = &inode.body else { return Ok(None) };
        let generation = body.generation;
        let (link, key, known) = match &body.origin {
            Some(origin) => (origin.link, origin.key.clone(), Some(origin.tag.clone())),
            None => match destination(view, &inode) {
                Ok(destination) => (destination.link, destination.key, None),
                Err(failure) if failure.kind == ErrorKind::Internal => return Err(failure),
                Err(_) => return Ok(None),
            },
        };
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        let Some(record) = record.filter(|record| !record.removing) else { return Ok(None) };
        let elsewhere = match (&body.origin, destination(view, &inode)) {
            (Some(origin), Ok(destination)) => !destination.is_of(origin),
            (Some(_), Err(failure)) if failure.kind == ErrorKind::Internal => return Err(failure),
            (Some(_), Err(_)) => true,
            (None, _) => false,
        };
        let bucket = record.bucket;
        Ok(Some(Self { inode, link, bucket, key, known, generation, elsewhere }))
    }
}

impl Object {
    /// Whether a file still stands where it did, against the same version of the same object.
    fn is_same(&self, before: &Self) -> bool {
        let place = |object: &Self| (object.link, object.elsewhere);
        place(self) == place(before) && self.key == before.key && self.known == before.known
    }

    /// Whether the file changed here and in the bucket.
    pub(in crate::hydration) fn is_conflict(&self) -> bool {
        matches!(&self.inode.body, Body::File(body) if body.state == ObjectState::Conflict)
    }
}

impl<E: Environment> Importer<E> {
    /// Asks for the object of a file again: a clean file follows it, also into nothing, and a dirty
    /// one becomes a conflict. To be called when an upload or a job found that it changed.
    ///
    /// # Errors
    /// [`ErrorKind::ObjectChanged`] when the object is gone; those of the bucket.
    pub async fn object(&self, inode: InodeId) -> Result<(), Failure> {
        let query = self.environment.read(move |view| Object::of(view, inode));
        let Some(object) = query.await? else { return Ok(()) };
        let (_, exists) = self.observe(&object).await?;
        if exists {
            return Ok(());
        }
        let text = format!("the object {} is no longer in the bucket", object.key);
        Err(Failure::new(ErrorKind::ObjectChanged, text))
    }

    /// Asks for an object again, and has the file follow. Says what became of the file, and whether
    /// the object exists.
    pub(in crate::hydration) async fn observe(
        &self,
        object: &Object,
    ) -> Result<(Observation, bool), Failure> {
        let (found, is_own) = match self.asked(object).await? {
            Some((found, is_own)) => (Some(found), is_own),
            None => (None, false),
        };
        let exists = found.is_some();
        if is_own && is_ahead(&object.inode) {
            // An upload that arrived late. The next export goes on from it.
            return Ok((Observation::Known, exists));
        }
        if found.as_ref().map(|found| &found.origin.tag) == object.known.as_ref() {
            return Ok((Observation::Known, exists));
        }
        let inode = object.inode.id;
        if object.elsewhere {
            tracing::debug!(%inode, key = object.key,
                "an object changed that its file was moved away from: the file stays as it is");
            return Ok((Observation::Known, exists));
        }
        // It may have got another name or another object while the bucket was asked.
        let query = self.environment.read(move |view| Object::of(view, inode));
        if !query.await?.is_some_and(|now| now.is_same(object)) {
            return Ok((Observation::Known, exists));
        }
        let observe = ObserveObject { inode, known: object.known.clone(), found };
        let outcome = self.environment.execute(Command::ObserveObject(observe), false).await?;
        let Outcome::Observed(observation) = outcome else {
            return Err(ErrorKind::Internal.into());
        };
        self.counts.observed(observation);
        let key = &object.key;
        match observation {
            Observation::Followed => {
                tracing::info!(%inode, key, "an object changed in its bucket: the file follows");
            }
            Observation::Removed => {
                tracing::info!(%inode, key, "an object is gone from its bucket, and its file too");
            }
            Observation::Conflict => tracing::warn!(%inode, key,
                "an object changed in its bucket and its file here: decide with millrace resolve"),
            Observation::Known | Observation::Kept => {}
        }
        Ok((observation, exists))
    }

    /// What the bucket has at the key of an object.
    pub(in crate::hydration) async fn head(
        &self,
        object: &Object,
    ) -> Result<Option<FoundObject>, Failure> {
        Ok(self.asked(object).await?.map(|(found, _)| found))
    }

    /// The same, and whether an export of this file made it. What is not there may take names and
    /// the only copy of their bytes along: so the bucket itself has to say it.
    async fn asked(&self, object: &Object) -> Result<Option<(FoundObject, bool)>, Failure> {
        let _turn = self.turns.of(object.link).probe().await?;
        let bucket = self.bucket(&object.bucket)?;
        let Some(head) = bucket.look(&object.key).await? else { return Ok(None) };
        let attributes = PosixAttributes::from_metadata(&head.metadata);
        let modified = attributes.mtime.unwrap_or(head.version.modified);
        let origin = origin_of(object.link, object.key.clone(), &head.version);
        let (inode, link) = (object.inode.id, object.link);
        let own = OwnMark::of(&*self.environment, inode, link, &object.key).await?;
        let is_own = own.has_made(&head.metadata);
        Ok(Some((FoundObject { origin, modified }, is_own)))
    }
}
