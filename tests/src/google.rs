//! Servers of Google Cloud Storage's XML API, for tests: nothing that can be installed has its
//! generations and preconditions.
//!
//! [`GoogleFront`] adds those to a real server, which does all the rest. [`GoogleServer`] keeps
//! objects in memory, each under a generation that no other ever had, and refuses what Google
//! refuses: another generation than the condition names, a token that none of its accounts signed,
//! parts that are too small, bytes that do not have the checksum that came with them. What it does
//! besides answering truly is said by [`Trouble`], one at a time.
//!
//! Modules: `account` (key files and tokens), `asked` (requests), `store` (objects and uploads),
//! `serve` (connections and what is done), `answer` (documents and headers), `front` (before a real
//! server).

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use anyhow::Result;
use bytes::Bytes;
use tokio::runtime::Runtime;

pub use self::front::GoogleFront;
use self::{account::Account, store::Store};

mod account;
mod answer;
mod asked;
mod front;
mod serve;
mod store;

/// The bucket that is there.
pub const BUCKET: &str = "data";

/// The account that may do everything, and the one that may only read.
pub const WRITER: &str = "writer@millrace.example";
/// See [`WRITER`].
pub const READER: &str = "reader@millrace.example";

/// A running server. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct GoogleServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    // Taken when it is dropped: a runtime must not be waited for by whoever is in one.
    runtime: Option<Runtime>,
}

/// What goes wrong with the next request that it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The body of a GET breaks off after so many bytes.
    CutBody(usize),
    /// A GET of an object answers with one byte changed.
    DamagedBody,
    /// A copy is done and its answer never comes.
    LostCopyAnswer,
    /// The deletion of an object is refused.
    RefusedDelete,
    /// The request, whatever it is, is to come later.
    SlowDown,
}

#[derive(Debug)]
struct Shared {
    accounts: Vec<Account>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    troubles: Vec<Trouble>,
    requests: Vec<String>,
}

impl GoogleServer {
    /// Starts a server on a free port of loopback.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { accounts: Account::both()?, state: Mutex::default() });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let served = Arc::clone(&shared);
        let respond = move |request| serve::respond(Arc::clone(&served), request);
        runtime.spawn(serve::accept(listener, respond));
        Ok(Self { address, shared, runtime: Some(runtime) })
    }

    /// Its address, for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes the key file of an account, as Google's console would. A stranger's has a key that
    /// nobody knows here.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_key(&self, account: &str, path: &Path) -> Result<()> {
        account::write_key(&self.shared.accounts, account, path)
    }

    /// What in a key file is a secret: a piece of it that stands nowhere else.
    #[must_use]
    pub fn secret_of(&self, account: &str) -> Option<String> {
        account::secret_of(&self.shared.accounts, account)
    }

    /// Puts an object, as somebody else would, and tells its generation.
    pub fn put(&self, key: &str, body: &[u8]) -> u64 {
        self.put_with(key, body, &[])
    }

    /// The same with user metadata.
    pub fn put_with(&self, key: &str, body: &[u8], metadata: &[(&str, &str)]) -> u64 {
        let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let metadata = metadata.iter().map(own).collect();
        self.shared.state().store.put(key, Bytes::copy_from_slice(body), metadata)
    }

    /// An object's bytes.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Bytes> {
        self.shared.state().store.object(key).map(|object| object.body.clone())
    }

    /// The value of an object's user metadata.
    #[must_use]
    pub fn metadata(&self, key: &str, name: &str) -> Option<String> {
        self.shared.state().store.object(key)?.metadata.get(name).cloned()
    }

    /// Deletes an object, as somebody else would.
    pub fn delete(&self, key: &str) {
        self.shared.state().store.delete(key);
    }

    /// The keys of all objects, the temporary ones of uploads among them.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.shared.state().store.keys().map(str::to_owned).collect()
    }

    /// How many uploads are not over.
    #[must_use]
    pub fn uploads(&self) -> usize {
        self.shared.state().store.uploads()
    }

    /// Has something go wrong, once.
    pub fn once(&self, trouble: Trouble) {
        self.shared.state().troubles.push(trouble);
    }

    /// Troubles that have not happened yet.
    #[must_use]
    pub fn troubles_left(&self) -> usize {
        self.shared.state().troubles.len()
    }

    /// Every request so far: method, path and query.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.state().requests.clone()
    }
}

impl Drop for GoogleServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Also from within another runtime, where nothing may be waited for.
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}

impl State {
    /// Takes the first trouble that fits.
    fn take(&mut self, fits: impl Fn(&Trouble) -> bool) -> Option<Trouble> {
        let at = self.troubles.iter().position(fits)?;
        Some(self.troubles.remove(at))
    }
}
