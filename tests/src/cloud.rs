//! Buckets of any kind, for tests that do the same with each of them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    azurite::{self, Azurite},
    bucket::Bucket,
    cluster::Wish,
    google::{GoogleFront, GoogleServer, READER, WRITER},
};

/// A bucket named `data` at somebody's, and what others do to it.
pub trait Cloud {
    /// What its URLs begin with.
    const SCHEME: &'static str;

    /// Its server's address, for links.
    fn endpoint(&self) -> String;

    /// Gives the daemons of a cluster what they need to reach it; what `link add` must be told
    /// besides. Files are written into `folder`, which has to stay.
    ///
    /// # Errors
    /// When the files cannot be written.
    fn access(&self, wish: &mut Wish, folder: &Path) -> Result<&'static [&'static str]>;

    /// Puts an object, as somebody else would.
    ///
    /// # Errors
    /// What the server answers.
    fn put(&self, key: &str, body: &[u8]) -> Result<()>;

    /// Gets an object's bytes, as somebody else would.
    ///
    /// # Errors
    /// What the server answers.
    fn get(&self, key: &str) -> Result<Vec<u8>>;

    /// Puts several.
    ///
    /// # Errors
    /// What the server answers.
    fn put_all(&self, objects: &[(String, &[u8])]) -> Result<()> {
        objects.iter().try_for_each(|(key, body)| self.put(key, body))
    }

    /// Gets several, in the order of the keys.
    ///
    /// # Errors
    /// What the server answers.
    fn get_all(&self, keys: &[String]) -> Result<Vec<Vec<u8>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }
}

/// The section of [`Cloud::access`]'s credentials file whose bearer may do everything.
pub const MAY: &str = "writer";
/// That of somebody whom the server does not know, or does not let write.
pub const MAY_NOT: &str = "wrong";

impl Cloud for Bucket {
    const SCHEME: &'static str = "s3";

    fn endpoint(&self) -> String {
        Self::endpoint(self)
    }

    fn access(&self, wish: &mut Wish, _: &Path) -> Result<&'static [&'static str]> {
        wish.environment.extend(self.environment());
        Ok(&[])
    }

    fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        Self::put(self, key, body)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        Self::get(self, key)
    }

    /// With one program for all of them.
    fn put_all(&self, objects: &[(String, &[u8])]) -> Result<()> {
        let folder = tempfile::tempdir()?;
        for (key, body) in objects {
            let path = folder.path().join(key);
            fs::create_dir_all(path.parent().context("it is in the folder")?)?;
            fs::write(path, body)?;
        }
        let put = "import os, concurrent.futures\n\
            def put(path):\n\
            \x20   client.upload_file(path, 'data', os.path.relpath(path, sys.argv[2]))\n\
            found = [os.path.join(at, one) for at, _, all in os.walk(sys.argv[2]) for one in all]\n\
            list(concurrent.futures.ThreadPoolExecutor(4).map(put, found))";
        let path = folder.path().to_str().context("a temporary path is text")?;
        self.script(put, &[path]).map(drop)
    }

    /// With one program for all of them.
    fn get_all(&self, keys: &[String]) -> Result<Vec<Vec<u8>>> {
        let folder = tempfile::tempdir()?;
        let get = "import os, concurrent.futures\n\
            def get(key):\n\
            \x20   path = os.path.join(sys.argv[2], key)\n\
            \x20   os.makedirs(os.path.dirname(path), exist_ok=True)\n\
            \x20   client.download_file('data', key, path)\n\
            list(concurrent.futures.ThreadPoolExecutor(4).map(get, sys.argv[3:]))";
        let mut arguments = vec![folder.path().to_str().context("a temporary path is text")?];
        arguments.extend(keys.iter().map(String::as_str));
        self.script(get, &arguments)?;
        keys.iter().map(|key| Ok(fs::read(folder.path().join(key))?)).collect()
    }
}

impl Cloud for GoogleServer {
    const SCHEME: &'static str = "gs";

    fn endpoint(&self) -> String {
        Self::endpoint(self)
    }

    fn access(&self, wish: &mut Wish, folder: &Path) -> Result<&'static [&'static str]> {
        with_keys(wish, folder, |account, path| self.write_key(account, path))
    }

    fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        Self::put(self, key, body);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        Ok(Self::get(self, key).with_context(|| format!("no object {key}"))?.to_vec())
    }
}

/// Somebody else puts and gets past the front, as the server's own client.
impl Cloud for GoogleFront {
    const SCHEME: &'static str = "gs";

    fn endpoint(&self) -> String {
        Self::endpoint(self)
    }

    fn access(&self, wish: &mut Wish, folder: &Path) -> Result<&'static [&'static str]> {
        with_keys(wish, folder, |account, path| self.write_key(account, path))
    }

    fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), body)?;
        let path = file.path().to_str().context("a temporary path is text")?;
        let put = "client.upload_file(sys.argv[4], sys.argv[2], sys.argv[3])";
        self.script(put, &[self.behind().1, key, path]).map(drop)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let file = tempfile::NamedTempFile::new()?;
        let path = file.path().to_str().context("a temporary path is text")?;
        let get = "client.download_file(sys.argv[2], sys.argv[3], sys.argv[4])";
        self.script(get, &[self.behind().1, key, path])?;
        Ok(fs::read(file.path())?)
    }
}

impl Cloud for Azurite {
    const SCHEME: &'static str = "az";

    fn endpoint(&self) -> String {
        Self::endpoint(self)
    }

    fn access(&self, wish: &mut Wish, folder: &Path) -> Result<&'static [&'static str]> {
        let account = format!("azure_storage_account_name = '{}'\n", azurite::ACCOUNT);
        let section = |name: &str, key: &str| {
            format!("[{name}]\n{account}azure_storage_account_key = '{key}'\n")
        };
        let text = section(MAY, &self.key()) + &section(MAY_NOT, "Z3Vlc3M=");
        with_sections(wish, folder, &text)
    }

    fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        Self::put(self, key, body)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        Self::get(self, key)
    }
}

/// Sections of Google's accounts, whose key files `write` writes.
fn with_keys(
    wish: &mut Wish,
    folder: &Path,
    write: impl Fn(&str, &Path) -> Result<()>,
) -> Result<&'static [&'static str]> {
    let mut text = String::new();
    for (section, account) in [(MAY, WRITER), (MAY_NOT, READER)] {
        let key = folder.join(format!("{section}.json"));
        write(account, &key)?;
        text += &format!("[{section}]\ngoogle_service_account = '{}'\n", key.display());
    }
    with_sections(wish, folder, &text)
}

fn with_sections(wish: &mut Wish, folder: &Path, text: &str) -> Result<&'static [&'static str]> {
    let file: PathBuf = folder.join("credentials.toml");
    fs::write(&file, text)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    wish.credentials = Some(file);
    Ok(&["--credentials", MAY])
}
