//! What says 404 although the bucket has not said it: files stay, and so do their bytes.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cloud::Cloud,
    cluster::Wish,
    hostile::{Asked, Fault, Rule},
    program::wait_for,
};
use rustix::io::Errno;

use super::{World, bytes, told};

/// A bucket behind an ingress, which can lose its route.
struct Hidden {
    bucket: Bucket,
    address: SocketAddr,
    has_route: Arc<AtomicBool>,
}

impl Hidden {
    fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        let endpoint = bucket.endpoint();
        let upstream = endpoint.strip_prefix("http://").context("not an http address")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let has_route = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&has_route);
        // Ends with the process of the test; each test has its own.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, has_route) = (upstream.clone(), asked.load(Ordering::Relaxed));
                // A connection that cannot be served is closed.
                thread::spawn(move || match has_route {
                    true => pass(client, &upstream),
                    false => refuse(client),
                });
            }
        });
        Ok(Self { bucket, address, has_route })
    }

    fn set_route(&self, has_route: bool) {
        self.has_route.store(has_route, Ordering::Relaxed);
    }
}

fn pass(mut client: TcpStream, upstream: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream)?;
    let (mut asks, mut asked) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        drop(io::copy(&mut asks, &mut asked));
        drop(asked.shutdown(Shutdown::Write));
    });
    io::copy(&mut server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

/// As an ingress does that knows nobody for this host or path.
fn refuse(mut client: TcpStream) -> io::Result<()> {
    let (mut head, mut byte) = (Vec::<u8>::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let page = "404 page not found\n";
    let body = if head.starts_with(b"HEAD ") { "" } else { page };
    write!(
        client,
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        page.len()
    )
}

impl Cloud for Hidden {
    const SCHEME: &'static str = "s3";

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    fn access(&self, wish: &mut Wish, folder: &Path) -> Result<&'static [&'static str]> {
        self.bucket.access(wish, folder)
    }

    fn put(&self, key: &str, body: &[u8]) -> Result<()> {
        self.bucket.put(key, body)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.bucket.get(key)
    }

    fn put_all(&self, objects: &[(String, &[u8])]) -> Result<()> {
        self.bucket.put_all(objects)
    }
}

const EXPORT: [&str; 2] = ["--mode", "import-export"];

/// Makes a file that only this cluster and its bucket have.
fn exported<C: Cloud>(world: &World<C>) -> Result<Vec<u8>> {
    let body = bytes(2_000_000, 9);
    fs::write(world.set().join("made"), &body)?;
    for command in ["import", "export"] {
        let job = world.job(&[command, "mr:/set"])?;
        ensure!(job["state"] == "succeeded", "{job}");
    }
    Ok(body)
}

/// Has the server look at what is there, which it cannot, and which it says.
fn looks_in_vain<C: Cloud>(world: &World<C>, paths: &[&str], words: &str) -> Result<()> {
    for path in paths {
        let job = world.job(&["import", path])?;
        ensure!(job["state"] == "failed", "{path}: {job}");
        let error = job["failures"][0]["error"].as_str().unwrap_or_default();
        ensure!(error.contains(words), "{path}: {job}");
    }
    Ok(())
}

#[test]
fn a_proxy_that_has_lost_its_bucket_takes_no_name_and_no_byte_away() -> Result<()> {
    let objects = [("cold", bytes(300_000, 1)), ("large", bytes(9_000_000, 2))];
    let world = World::start_at(Hidden::start()?, &objects, &EXPORT, &[])?;
    let made = exported(&world)?;
    world.bucket.set_route(false);
    for (name, _) in &objects {
        let outcome = told(name, Instant::now(), fs::read(world.set().join(name)))?;
        ensure!(outcome.as_ref().err() == Some(&Errno::IO), "{name}: {:?}", outcome.err());
    }
    // For all that anybody knows it is away, and comes back: jobs wait for it.
    for path in ["mr:/set", "mr:/set/made", "mr:/set/cold"] {
        let id = world.cluster.json(&["import", path])?["id"].to_string();
        let shown = wait_for("a job that waits", || {
            let shown = world.cluster.json(&["job", "show", &id, "--at-once"]).ok()?;
            shown["waits"].is_array().then_some(shown)
        })?;
        let error = shown["waits"][0]["error"].as_str().unwrap_or_default();
        ensure!(error.contains("does not answer"), "{path}: {shown}");
        world.cluster.cli(&["job", "cancel", &id])?.ok()?;
    }
    ensure!(fs::read(world.set().join("made"))? == made, "its only copy is here");
    for (name, body) in &objects {
        let size = fs::symlink_metadata(world.set().join(name))?.len();
        ensure!(size == body.len() as u64, "{name} has {size} bytes");
    }
    world.bucket.set_route(true);
    let [cold, large] = objects;
    world.is_sound(&[cold, large, ("made", made)])
}

#[test]
fn an_object_that_is_listed_stays_although_nothing_else_finds_it() -> Result<()> {
    let body = bytes(300_000, 3);
    let world = World::start(&[("file", body.clone())], &[])?;
    ensure!(fs::read_dir(world.set())?.count() == 1, "it is listed");
    for asked in [Asked::Head, Asked::Get] {
        world.proxy.add(Rule::always(asked, Fault::Vanished).of("set/file"));
    }
    let outcome = told("file", Instant::now(), fs::read(world.set().join("file")))?;
    ensure!(outcome.as_ref().err() == Some(&Errno::STALE), "{:?}", outcome.err());
    looks_in_vain(&world, &["mr:/set/file"], "contradicts itself")?;
    ensure!(world.proxy.done(Asked::Head, "404") > 0, "{}", world.proxy.told());
    ensure!(fs::symlink_metadata(world.set().join("file"))?.len() == 300_000, "it stays");
    world.is_sound(&[("file", body)])
}

#[test]
fn a_bucket_that_was_deleted_takes_no_exported_file_along() -> Result<()> {
    let world = World::start(&[("there", b"there".to_vec())], &EXPORT)?;
    let made = exported(&world)?;
    let delete = "for one in client.list_objects_v2(Bucket='data')['Contents']:\n\
        \x20   client.delete_object(Bucket='data', Key=one['Key'])\n\
        client.delete_bucket(Bucket='data')";
    world.bucket.script(delete, &[])?;
    looks_in_vain(&world, &["mr:/set", "mr:/set/made", "mr:/set/there"], "does not exist")?;
    ensure!(fs::read(world.set().join("made"))? == made, "its only copy is here");
    ensure!(fs::symlink_metadata(world.set().join("there"))?.len() == 5, "it may come back");
    Ok(())
}
