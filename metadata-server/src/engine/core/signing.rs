//! The keys that sign capabilities and tickets: made, replaced when they are old, and used as soon
//! as they are on stable storage.

use millrace_protocol::cluster::SigningKey;
use millrace_types::{Failure, KeyId, Timestamp};

use super::Core;
use crate::{
    capability::new_secret,
    command::{Command, NewKey},
    namespace::tree,
    store::{StoreError, View, keys, records::KeyRecord},
};

impl Core {
    pub(super) fn make_key(&mut self) {
        if let Err(error) = self.renew_key() {
            tracing::error!(%error, "cannot make a signing key");
        }
    }

    /// Makes a new key, however old the present one is; the next [`Self::use_coming_key`] after
    /// it is synced uses it.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn renew_key(&mut self) -> Result<(), Failure> {
        let secret = new_secret();
        self.execute(None, Command::NewKey(NewKey { secret }))?;
        self.coming_key = Some(self.log.last());
        Ok(())
    }

    /// Uses the new key from here on, if there is one and it is synced.
    ///
    /// # Errors
    /// When the store is broken.
    pub fn use_coming_key(&mut self) -> Result<(), Failure> {
        match self.coming_key {
            Some(index) if self.log.state().synced >= index => {
                self.load_keys().map_err(|error| self.failure(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Makes a new key when the present one is old; uses it as soon as it is synced.
    pub(super) fn rotate_key(&mut self, now: Timestamp) -> Result<(), Failure> {
        if self.coming_key.is_some() {
            return self.use_coming_key();
        }
        let keys = signing_keys(&*self.store.0).map_err(|error| self.failure(error.into()))?;
        let old = keys
            .last()
            .is_none_or(|(_, record)| now.since(record.made) > self.settings.key_lifetime);
        if old {
            tracing::info!("the signing key is replaced");
            self.make_key();
        }
        Ok(())
    }

    pub(super) fn load_keys(&mut self) -> Result<(), StoreError> {
        let keys = signing_keys(&*self.store.0)?;
        let keys = keys.into_iter().map(|(id, record)| SigningKey { id, secret: record.secret });
        self.keyring.replace(keys.collect());
        self.coming_key = None;
        Ok(())
    }
}

pub(super) fn signing_keys(
    view: &(impl View + ?Sized),
) -> Result<Vec<(KeyId, KeyRecord)>, StoreError> {
    let found = tree::scan::<KeyRecord>(view, &keys::signing_keys(), usize::MAX)?;
    let id = |key: &[u8]| {
        let bytes = key.get(1..5).and_then(|bytes| bytes.try_into().ok());
        KeyId(bytes.map_or(0, u32::from_be_bytes))
    };
    Ok(found.into_iter().map(|(key, record)| (id(&key), record)).collect())
}
