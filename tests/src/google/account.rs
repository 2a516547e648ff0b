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

/// An account with an RSA key.
#[derive(Debug)]
pub(super) struct Account {
    email: String,
    key: KeyPair,
    pub(super) may_write: bool,
}

impl Account {
    pub(super) fn new(email: &str, may_write: bool) -> Result<Self> {
        let key = KeyPair::generate(KeySize::Rsa2048).context("a new RSA key")?;
        Ok(Self { email: email.to_owned(), key, may_write })
    }

    pub(super) fn is_named(&self, email: &str) -> bool {
        self.email == email
    }

    fn private(&self) -> Result<String> {
        let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&self.key).context("the key's own bytes")?;
        Ok(STANDARD.encode(der.as_ref()))
    }

    /// A line of the private key that every form of it shows.
    pub(super) fn secret(&self) -> String {
        self.private().unwrap_or_default().chars().skip(128).take(64).collect()
    }

    pub(super) fn write_key(&self, path: &Path) -> Result<()> {
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
    pub(super) fn signed(&self, token: &str) -> bool {
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
