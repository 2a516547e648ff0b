//! Signs capabilities and session tickets with the cluster's newest key.
//!
//! Owns the keys in memory. Keys are made by a command and used only once that command is synced,
//! so that no signature outlives the key that a loss of power took away.

use std::sync::{PoisonError, RwLock};

use aws_lc_rs::{hmac, rand};
use millrace_protocol::{
    capability::{Capability, Content, Purpose, Rights, Signed},
    cluster::{Keys, SigningKey},
    codec::{self, Message},
    session::Ticket,
};
use millrace_types::{ErrorKind, KeyId, SessionId};

/// The keys that targets accept, the newest last. Shared by every thread that signs.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: RwLock<Vec<SigningKey>>,
}

impl Keyring {
    /// Replaces the keys; the newest is last.
    pub fn replace(&self, keys: Vec<SigningKey>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// The keys for targets.
    #[must_use]
    pub fn keys(&self) -> Keys {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        Keys { keys: keys.clone() }
    }

    /// The key that signs now; key 0 stands for none.
    #[must_use]
    pub fn newest(&self) -> KeyId {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.last().map_or(KeyId(0), |key| key.id)
    }

    /// Signs what `session` may do with `content`.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] before the first key is durable.
    pub fn capability(
        &self,
        rights: Rights,
        session: SessionId,
        content: Content,
    ) -> Result<Signed, ErrorKind> {
        let capability = Capability { rights, session, content };
        self.sign(Purpose::Capability, &capability)
    }

    /// Signs a session's ticket.
    ///
    /// # Errors
    /// As [`Self::capability`].
    pub fn ticket(&self, ticket: &Ticket) -> Result<Signed, ErrorKind> {
        self.sign(Purpose::Ticket, ticket)
    }

    /// What a capability says that a client shows.
    ///
    /// # Errors
    /// [`ErrorKind::KeyRetired`] when its key is not accepted any more; [`ErrorKind::Forbidden`]
    /// when nobody here has signed it.
    pub fn verified(&self, signed: &Signed) -> Result<Capability, ErrorKind> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let signer = keys.iter().find(|key| key.id == signed.key).ok_or(ErrorKind::KeyRetired)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &signer.secret);
        let bytes = Signed::signed_bytes(Purpose::Capability, signed.key, &signed.body);
        hmac::verify(&key, &bytes, &signed.mac).map_err(|_| ErrorKind::Forbidden)?;
        codec::decode(&signed.body).map_err(|_| ErrorKind::Forbidden)
    }

    fn sign(&self, purpose: Purpose, statement: &impl Message) -> Result<Signed, ErrorKind> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let newest = keys.last().ok_or(ErrorKind::Unavailable)?;
        let body = codec::encode(statement).to_vec();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &newest.secret);
        let tag = hmac::sign(&key, &Signed::signed_bytes(purpose, newest.id, &body));
        let mac = tag.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes");
        Ok(Signed { key: newest.id, body, mac })
    }
}

/// Draws a new secret.
///
/// # Panics
/// When the system has no random numbers: nothing could be signed safely then.
#[must_use]
pub fn new_secret() -> [u8; 32] {
    let mut secret = [0; 32];
    rand::fill(&mut secret).expect("the system's random generator works");
    secret
}

#[cfg(test)]
mod tests {
    use millrace_types::{
        ChunkSize, ContentGeneration, HostId, InodeId, Layout, PoolId, Timestamp, WriteEpoch,
    };

    use super::*;

    #[test]
    fn a_ticket_verifies_under_its_key_and_purpose_alone() {
        let ring = Keyring::default();
        let ticket = Ticket {
            session: SessionId(3),
            host: HostId([1; 16]),
            fingerprint: [2; 32],
            expires: Timestamp(9),
        };
        assert_eq!(ring.ticket(&ticket), Err(ErrorKind::Unavailable));
        let secret = new_secret();
        let id = KeyId(7);
        ring.replace(vec![SigningKey { id, secret }]);
        let signed = ring.ticket(&ticket).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let verify = |purpose| {
            let bytes = Signed::signed_bytes(purpose, signed.key, &signed.body);
            hmac::verify(&key, &bytes, &signed.mac).is_ok()
        };
        assert!(verify(Purpose::Ticket));
        assert!(!verify(Purpose::Capability));
        assert_eq!(codec::decode::<Ticket>(&signed.body).unwrap(), ticket);
    }

    #[test]
    fn a_capability_is_taken_back_as_it_was_signed_and_in_no_other_way() {
        let ring = Keyring::default();
        ring.replace(vec![SigningKey { id: KeyId(7), secret: new_secret() }]);
        let layout = Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 4, 9).unwrap();
        let content = Content {
            inode: InodeId(5),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout,
            origin: None,
            origin_length: 0,
            sparse: false,
        };
        let (rights, session) = (Rights::ReadWrite, SessionId(3));
        let signed = ring.capability(rights, session, content.clone()).unwrap();
        assert_eq!(ring.verified(&signed), Ok(Capability { rights, session, content }));
        let ticket =
            Ticket { session, host: HostId([1; 16]), fingerprint: [2; 32], expires: Timestamp(9) };
        let ticket = ring.ticket(&ticket).unwrap();
        assert_eq!(ring.verified(&ticket), Err(ErrorKind::Forbidden), "signed for another purpose");
        for byte in 0..signed.body.len() {
            let mut other = signed.clone();
            other.body[byte] ^= 1;
            assert_eq!(ring.verified(&other), Err(ErrorKind::Forbidden), "byte {byte}");
        }
        ring.replace(vec![SigningKey { id: KeyId(8), secret: new_secret() }]);
        assert_eq!(ring.verified(&signed), Err(ErrorKind::KeyRetired));
    }
}
