//! Service accounts: the key files that are given out, and the tokens that come back.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};
use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::Value;

use super::{READER, WRITER, asked::Asked, store::Refusal};

/// Whether the sender of a request may do this: one of the accounts has signed its token.
pub(super) fn may(accounts: &[Account], asked: &Asked) -> Result<(), Refusal> {
    let told = asked.header("authorization").ok_or((401, "AuthenticationRequired"))?;
    let token = told.strip_prefix("Bearer ").unwrap_or_default();
    let account = accounts.iter().find(|account| account.signed(token));
    let account = account.ok_or((401, "AuthenticationRequired"))?;
    if asked.reads() || account.may_write { Ok(()) } else { Err((403, "AccessDenied")) }
}

/// Writes the key file of an account, as Google's console would. A stranger's has a key that nobody
/// knows here.
pub(super) fn write_key(accounts: &[Account], email: &str, path: &Path) -> Result<()> {
    match accounts.iter().find(|known| known.email == email) {
        Some(known) => known.write_key(path),
        None => Account::new(email, false)?.write_key(path),
    }
}

/// What in a key file is a secret: a piece of it that stands nowhere else.
pub(super) fn secret_of(accounts: &[Account], email: &str) -> Option<String> {
    accounts.iter().find(|known| known.email == email).map(Account::secret)
}

/// An account with an RSA key.
#[derive(Debug)]
pub(super) struct Account {
    email: String,
    key: KeyPair,
    may_write: bool,
}

impl Account {
    fn new(email: &str, may_write: bool) -> Result<Self> {
        let key = KeyPair::generate(KeySize::Rsa2048).context("a new RSA key")?;
        Ok(Self { email: email.to_owned(), key, may_write })
    }

    /// [`WRITER`] and [`READER`].
    pub(super) fn both() -> Result<Vec<Self>> {
        Ok(vec![Self::new(WRITER, true)?, Self::new(READER, false)?])
    }

    fn private(&self) -> Result<String> {
        let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&self.key).context("the key's own bytes")?;
        Ok(STANDARD.encode(der.as_ref()))
    }

    /// A line of the private key that every form of it shows.
    fn secret(&self) -> String {
        self.private().unwrap_or_default().chars().skip(128).take(64).collect()
    }

    fn write_key(&self, path: &Path) -> Result<()> {
        let private = self.private()?;
        let lines: Vec<&str> = private
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).unwrap_or_default())
            .collect();
        let pem = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            lines.join("\n")
        );
        let file = serde_json::json!({
            "type": "service_account",
            "project_id": "millrace",
            "private_key_id": "1",
            "private_key": pem,
            "client_email": self.email,
            "token_uri": "https://oauth2.googleapis.com/token",
        });
        fs::write(path, serde_json::to_vec_pretty(&file)?)?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
    }

    /// Whether this account signed a token, and means itself by it.
    fn signed(&self, token: &str) -> bool {
        self.check(token).is_some()
    }

    fn check(&self, token: &str) -> Option<()> {
        let (message, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, self.key.public_key());
        public.verify(message.as_bytes(), &signature).ok()?;
        let claims = URL_SAFE_NO_PAD.decode(message.split_once('.')?.1).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        (claims["iss"] == self.email.as_str()).then_some(())
    }
}
