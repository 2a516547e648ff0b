//! Buckets of every kind, and of two S3 servers, through whole clusters: read lazily, exported
//! whole and by parts, in conflict, with deletions, and without a word about keys.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    azurite::Azurite,
    bucket::Bucket,
    cloud::{Cloud, MAY, MAY_NOT},
    cluster::{Cluster, Wish},
    google::{GoogleFront, GoogleServer, WRITER},
    program::{Said, wait_for},
};

/// What else a test wants of a bucket.
trait Tried: Cloud {
    /// Gives the daemons a file with the sections [`MAY`] and [`MAY_NOT`].
    fn write_sections(&self, wish: &mut Wish, folder: &Path) -> Result<()> {
        self.access(wish, folder).map(drop)
    }
    /// Whether its server knows who asks, and so refuses anybody.
    fn has_identities(&self) -> bool {
        true
    }
    /// What must never be told.
    fn secret(&self) -> Result<String>;
    /// Whether anything of uploads is left beside a key.
    fn has_left(&self, key: &str) -> Result<bool>;
    /// The metadata of an object, under the name that FSx gives a mode.
    fn mode(&self, key: &str) -> Result<String>;
}

impl Tried for Bucket {
    fn write_sections(&self, wish: &mut Wish, folder: &Path) -> Result<()> {
        let path = folder.join("credentials.toml");
        let mut text = String::new();
        for (name, pairs) in [(MAY, self.environment()), (MAY_NOT, self.denied_environment())] {
            text += &format!("[{name}]\n");
            let keys =
                pairs.iter().filter(|(name, _)| name.ends_with("_KEY") || name.ends_with("_ID"));
            for (name, value) in keys {
                text += &format!("{} = '{value}'\n", name.to_ascii_lowercase());
            }
        }
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        wish.credentials = Some(path);
        Ok(())
    }

    fn has_identities(&self) -> bool {
        Self::has_identities(self)
    }

    fn secret(&self) -> Result<String> {
        let environment = self.environment();
        let secret = environment.into_iter().find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY");
        Ok(secret.context("the identity has a key")?.1)
    }

    fn has_left(&self, _: &str) -> Result<bool> {
        let uploads = "print(len(client.list_multipart_uploads(Bucket='data').get('Uploads', [])))";
        Ok(self.script(uploads, &[])?.trim() != "0")
    }

    fn mode(&self, key: &str) -> Result<String> {
        let head = "print(client.head_object(Bucket='data', Key=sys.argv[2])['Metadata']\
            ['file-permissions'])";
        Ok(self.script(head, &[key])?.trim().to_owned())
    }
}

impl Tried for GoogleServer {
    fn secret(&self) -> Result<String> {
        self.secret_of(WRITER).context("the writer has a key")
    }

    fn has_left(&self, _: &str) -> Result<bool> {
        Ok(self.uploads() > 0 || self.keys().iter().any(|key| key.contains(".millrace-")))
    }

    fn mode(&self, key: &str) -> Result<String> {
        self.metadata(key, "file-permissions").context("no mode")
    }
}

impl Tried for GoogleFront {
    fn secret(&self) -> Result<String> {
        self.secret_of(WRITER).context("the writer has a key")
    }

    fn has_left(&self, _: &str) -> Result<bool> {
        let left = "found = client.list_objects_v2(Bucket=sys.argv[2]).get('Contents', [])\n\
            found += client.list_multipart_uploads(Bucket=sys.argv[2]).get('Uploads', [])\n\
            print(any('.millrace-' in one['Key'] for one in found))";
        Ok(self.script(left, &[self.behind().1])?.trim() == "True")
    }

    fn mode(&self, key: &str) -> Result<String> {
        let told = "told = client.head_object(Bucket=sys.argv[2], Key=sys.argv[3])['Metadata']\n\
            print(told['file-permissions'])";
        Ok(self.script(told, &[self.behind().1, key])?.trim().to_owned())
    }
}

impl Tried for Azurite {
    fn secret(&self) -> Result<String> {
        Ok(self.key())
    }

    fn has_left(&self, _: &str) -> Result<bool> {
        let listed =
            self.ask("GET", "", &[("restype", "container"), ("comp", "list")], &[], b"")?;
        Ok(String::from_utf8_lossy(&listed.body).contains(".millrace-"))
    }

    fn mode(&self, key: &str) -> Result<String> {
        let head = self.ask("HEAD", key, &[], &[], b"")?.head;
        let line = head.lines().find_map(|line| line.strip_prefix("x-ms-meta-file_permissions: "));
        Ok(line.context("no mode")?.to_owned())
    }
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| u8::try_from((index * 31 + index / 251 + seed) % 256).unwrap_or(0))
        .collect()
}

fn state(cluster: &Cluster, path: &str) -> Result<String> {
    let told = cluster.json(&["state", path])?;
    told["state"].as_str().map(str::to_owned).with_context(|| told.to_string())
}

struct World<C> {
    cluster: Cluster,
    cloud: C,
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl<C: Tried> World<C> {
    /// A cluster with a link to `set/`, in which there are a small and a large object.
    fn new(cloud: C) -> Result<Self> {
        cloud.put("set/small", &bytes(1_000, 1))?;
        cloud.put("set/sub/large", &bytes(20_000_000, 2))?;
        let folder = tempfile::tempdir()?;
        // All that the daemons could ever say about it.
        let environment =
            vec![("RUST_LOG".to_owned(), "millrace=trace,object_store=debug".to_owned())];
        let mut wish = Wish { environment, ..Wish::default() };
        cloud.write_sections(&mut wish, folder.path())?;
        let cluster = Cluster::start(wish)?;
        let root = cluster.mount().join("set");
        let world = Self { cluster, cloud, root, _folder: folder };
        world.add("data/set", "mr:/set", MAY)?.ok()?;
        Ok(world)
    }

    fn add(&self, at: &str, path: &str, section: &str) -> Result<Said> {
        self.add_with(at, path, section, &[])
    }

    fn add_with(&self, at: &str, path: &str, section: &str, options: &[&str]) -> Result<Said> {
        let (url, endpoint) = (format!("{}://{at}", C::SCHEME), self.cloud.endpoint());
        let add = ["link", "add", &url, path, "--mode", "import-export"];
        let more = ["--endpoint", &endpoint, "--credentials", section];
        self.cluster.cli(&[&add[..], &more, options].concat())
    }

    fn is_read_lazily(&self) -> Result<()> {
        let large = bytes(20_000_000, 2);
        ensure!(state(&self.cluster, "mr:/set/sub/large")? == "released");
        let mut piece = [0; 4_096];
        let file = fs::File::open(self.root.join("sub/large"))?;
        file.read_exact_at(&mut piece, 12_345_678)?;
        ensure!(piece == large[12_345_678..12_345_678 + 4_096]);
        let told = self.cluster.json(&["state", "mr:/set/sub/large"])?;
        ensure!(told["hydrated_bytes"].as_u64().context("a number")? < 20_000_000, "{told}");
        ensure!(fs::read(self.root.join("sub/large"))? == large);
        ensure!(fs::read(self.root.join("small"))? == bytes(1_000, 1));
        // It is stored a little after its reader has the bytes.
        let stored = || state(&self.cluster, "mr:/set/sub/large").ok();
        wait_for("what was read to be stored", || (stored()? == "hydrated").then_some(()))
    }

    fn is_exported(&self) -> Result<()> {
        let (large, small) = (bytes(33_333_333, 3), bytes(9, 4));
        fs::create_dir(self.root.join("made"))?;
        fs::write(self.root.join("made/checkpoint"), &large)?;
        fs::write(self.root.join("made/small"), &small)?;
        fs::set_permissions(self.root.join("made/small"), fs::Permissions::from_mode(0o640))?;
        let replaced = bytes(20_000_000, 5);
        fs::write(self.root.join("sub/large"), &replaced)?;
        self.cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
        ensure!(self.cloud.get("set/made/checkpoint")? == large);
        ensure!(self.cloud.get("set/made/small")? == small);
        ensure!(self.cloud.get("set/sub/large")? == replaced);
        ensure!(self.cloud.mode("set/made/small")? == "0100640");
        ensure!(self.cloud.mode("set/made/checkpoint")?.starts_with("0100"));
        ensure!(!self.cloud.has_left("set/made/checkpoint")?);
        self.cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
        ensure!(state(&self.cluster, "mr:/set/made/checkpoint")? == "released");
        ensure!(fs::read(self.root.join("made/checkpoint"))? == large);
        Ok(())
    }

    /// Both sides change a file that is sent at once and one that goes by parts.
    fn conflicts_are_found(&self) -> Result<()> {
        let ours = bytes(25_000_000, 6);
        for (name, ours) in [("small", &bytes(2_000, 7)), ("sub/large", &ours)] {
            fs::write(self.root.join(name), ours)?;
            self.cloud.put(&format!("set/{name}"), b"theirs")?;
            let path = format!("mr:/set/{name}");
            let said = self.cluster.cli(&["export", &path, "--wait"])?;
            ensure!(said.code != Some(0), "{said}");
            ensure!(state(&self.cluster, &path)? == "conflict", "{name}");
            ensure!(self.cloud.get(&format!("set/{name}"))? == b"theirs", "{name}");
            self.cluster.cli(&["conflicts", "resolve", &path, "--keep", "local"])?.ok()?;
            self.cluster.cli(&["export", &path, "--wait"])?.ok()?;
            ensure!(self.cloud.get(&format!("set/{name}"))? == *ours, "{name}");
            ensure!(!self.cloud.has_left(&format!("set/{name}"))?, "{name}");
        }
        self.cloud.put("set/small", &bytes(500, 8))?;
        self.cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
        ensure!(fs::read(self.root.join("small"))? == bytes(500, 8), "what is clean follows");
        Ok(())
    }

    /// What is removed here goes with the next export, and nothing else does.
    fn deletions_are_passed_on(&self) -> Result<()> {
        for name in ["gone", "kept", "changed"] {
            self.cloud.put(&format!("deletions/{name}"), &bytes(1_000, 9))?;
        }
        self.add_with("data/deletions", "mr:/deletions", MAY, &["--propagate-deletes"])?.ok()?;
        let root = self.cluster.mount().join("deletions");
        ensure!(fs::read_dir(&root)?.count() == 3, "imported");
        fs::remove_file(root.join("gone"))?;
        fs::remove_file(root.join("changed"))?;
        self.cloud.put("deletions/changed", b"theirs")?;
        self.cluster.cli(&["export", "mr:/deletions", "--wait"])?.ok()?;
        ensure!(self.cloud.get("deletions/gone").is_err(), "deleted");
        ensure!(self.cloud.get("deletions/kept")? == bytes(1_000, 9), "nobody removed it");
        ensure!(self.cloud.get("deletions/changed")? == b"theirs", "nobody here has seen it");
        Ok(())
    }

    fn attributes_come_back(&self) -> Result<()> {
        let other = self.cluster.mount().join("again");
        let add = self.add("data/set/made", "mr:/again", MAY)?;
        add.ok()?;
        ensure!(fs::read_dir(&other)?.count() == 2, "no name but those of files");
        ensure!(fs::metadata(other.join("small"))?.mode() & 0o777 == 0o640);
        Ok(())
    }

    fn requests_are_counted(&self) -> Result<()> {
        let told = self.cluster.json(&["link", "list", "--requests"])?;
        let one = &told["buckets"][0];
        ensure!(one["url"] == format!("{}://data/", C::SCHEME), "{told}");
        for kind in ["list", "get", "put", "part"] {
            ensure!(one[kind].as_u64() > Some(0), "{kind}: {told}");
        }
        ensure!(one["received_bytes"].as_u64() > Some(20_000_000), "{told}");
        ensure!(one["sent_bytes"].as_u64() > Some(33_333_333), "{told}");
        Ok(())
    }

    fn refusals_are_told(&self) -> Result<()> {
        let said = self.add("nowhere", "mr:/x", MAY)?;
        ensure!(said.code == Some(1) && said.stderr.contains("nowhere"), "{said}");
        ensure!(said.stderr.contains("does not exist: check its name"), "{said}");
        if self.cloud.has_identities() {
            let said = self.add("data/x", "mr:/x", MAY_NOT)?;
            ensure!(said.code == Some(1) && said.stderr.contains("check"), "{said}");
            for host in ["metadata server", "target-0", "target-1"] {
                ensure!(said.stderr.contains(host), "{said}");
            }
        }
        ensure!(!self.cluster.mount().join("x").exists(), "nothing is linked");
        let checked = self.cluster.json(&["link", "check", "mr:/set"])?;
        ensure!(checked[0]["usable"] == true, "{checked}");
        Ok(())
    }

    /// Neither the key nor a token nor a signature.
    fn nothing_tells_a_secret(&self) -> Result<()> {
        let mut texts = vec![self.cluster.cli(&["link", "list"])?.ok()?];
        texts.push(self.cluster.json(&["link", "list"])?.to_string());
        let secret = self.cloud.secret()?;
        for daemon in ["metadata", "target-0", "target-1", "mount-0"] {
            let log = self.cluster.log(daemon);
            ensure!(!log.is_empty(), "{daemon} logs something");
            texts.push(log);
        }
        for text in &texts {
            let signs = ["Bearer ", "SharedKey ", "PRIVATE KEY", "AWS4-HMAC-SHA256"];
            for word in signs.iter().chain(&[secret.as_str()]) {
                ensure!(!text.contains(word), "{word:?} is told");
            }
        }
        Ok(())
    }
}

fn everything_works<C: Tried>(cloud: C) -> Result<()> {
    let world = World::new(cloud)?;
    world.is_read_lazily()?;
    world.is_exported()?;
    world.conflicts_are_found()?;
    world.deletions_are_passed_on()?;
    world.attributes_come_back()?;
    world.requests_are_counted()?;
    world.refusals_are_told()?;
    world.nothing_tells_a_secret()
}

#[test]
fn a_bucket_of_an_s3_server_is_read_lazily_exported_and_never_overwritten_unseen() -> Result<()> {
    everything_works(Bucket::start()?)
}

#[test]
fn a_bucket_of_another_s3_server_is_read_lazily_exported_and_never_overwritten() -> Result<()> {
    everything_works(Bucket::start_moto()?)
}

#[test]
fn a_bucket_of_google_is_read_lazily_exported_and_never_overwritten_unseen() -> Result<()> {
    everything_works(GoogleServer::start()?)
}

#[test]
fn a_flat_directory_of_google_is_listed_in_ranges_and_has_each_name_once() -> Result<()> {
    let (cloud, folder) = (GoogleServer::start()?, tempfile::tempdir()?);
    // In no order, as hashes are; what an upload left behind is among them.
    let name = |nth: u64| format!("{:016x}", nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut names: Vec<_> = (0..PAGES * 1_000 - 500).map(name).collect();
    names.sort_unstable();
    names.iter().for_each(|name| {
        cloud.put(&format!("flat/{name}"), b"x");
    });
    cloud.put("flat/.a.millrace-0123456789abcdef", b"x");
    let mut wish = Wish::default();
    cloud.access(&mut wish, folder.path())?;
    let cluster = Cluster::start(wish)?;
    let endpoint = cloud.endpoint();
    let add = ["link", "add", "gs://data/flat", "mr:/flat", "--endpoint", &endpoint];
    cluster.cli(&[&add[..], &["--credentials", MAY]].concat())?.ok()?;
    let before = cloud.requests().len();
    let entries = fs::read_dir(cluster.mount().join("flat"))?;
    let found = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    let mut found: Vec<String> = found.collect::<Result<_>>()?;
    found.sort_unstable();
    ensure!(found == names, "{} names, not {}", found.len(), names.len());
    let asked = cloud.requests().split_off(before);
    let listed = |what: &str| asked.iter().filter(|line| line.contains(what)).count();
    let (pages, cuts) = (listed("delimiter="), listed("start-after="));
    ensure!(cuts > 1, "{cuts} of {pages} requests begin behind a name");
    // A range begins and ends within pages, and a cut may find nothing behind it.
    let most = usize::try_from(PAGES)? * 2;
    ensure!(pages <= most, "{pages} requests for {PAGES} pages");
    Ok(())
}

/// Pages of that directory.
const PAGES: u64 = 24;

#[test]
fn what_is_at_a_bucket_of_google_is_in_a_real_server_as_its_own_client_has_it() -> Result<()> {
    everything_works(GoogleFront::start()?)
}

#[test]
fn a_container_of_azure_is_read_lazily_exported_and_never_overwritten_unseen() -> Result<()> {
    everything_works(Azurite::start()?)
}
