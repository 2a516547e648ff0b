//! Keys that a service gives for a while: the instance's metadata service, and STS for a web
//! identity. The server of the bucket has made them, and takes no others.

use std::{fs, io, path::Path};

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use millrace_tests::{
    bucket::{Bucket, TemporaryKeys},
    cluster::{Cluster, Wish},
    hostile::{Asked, HostileProxy},
    issuer::{Issuer, ROLE, Trouble},
};

/// Each of them is asked for once at least by what [`World::works`] does: reads by object_store,
/// the others by requests of our own, the completion under a condition.
const REQUESTS: [Asked; 5] = [Asked::List, Asked::Get, Asked::Create, Asked::Part, Asked::Complete];

const WEB_TOKEN: &str = "token-of-a-web-identity";

/// A service that gives keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Metadata,
    Sts,
}

impl Service {
    /// What daemons have to be told of it.
    fn environment(self, issuer: &Issuer, folder: &Path) -> Result<Vec<(String, String)>> {
        let (token, certificate) = (folder.join("web-token"), folder.join("sts.pem"));
        fs::write(&token, WEB_TOKEN)?;
        fs::write(&certificate, issuer.certificate())?;
        let pairs = match self {
            Self::Metadata => vec![("AWS_METADATA_ENDPOINT", issuer.metadata_endpoint())],
            Self::Sts => vec![
                ("AWS_WEB_IDENTITY_TOKEN_FILE", token.display().to_string()),
                ("AWS_ROLE_ARN", ROLE.to_owned()),
                ("AWS_ENDPOINT_URL_STS", issuer.sts_endpoint()),
                ("SSL_CERT_FILE", certificate.display().to_string()),
            ],
        };
        Ok(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// How it is called where it fails.
    fn name(self, issuer: &Issuer) -> String {
        match self {
            Self::Metadata => {
                format!("the instance metadata service at {}", issuer.metadata_endpoint())
            }
            Self::Sts => {
                let endpoint = issuer.sts_endpoint();
                format!("the STS of the web identity (AWS_WEB_IDENTITY_TOKEN_FILE) at {endpoint}")
            }
        }
    }
}

struct World {
    service: Service,
    // Before the servers, which it uses until it has ended.
    cluster: Cluster,
    proxy: HostileProxy,
    bucket: Bucket,
    issuer: Issuer,
    folder: tempfile::TempDir,
}

/// Said to have expired, so that each request asks for them anew.
fn expired() -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(1)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at + seed) % 251).unwrap_or(0)).collect()
}

impl World {
    fn new(service: Service) -> Result<(Self, TemporaryKeys)> {
        let bucket = Bucket::start_with_sts()?;
        bucket.put("set/other", b"other")?;
        let proxy = HostileProxy::for_endpoint(&bucket.endpoint())?;
        let issuer = Issuer::start()?;
        let first = bucket.temporary_keys()?;
        issuer.give(&first, expired());
        issuer.take_token(WEB_TOKEN);
        let folder = tempfile::tempdir()?;
        let environment = service.environment(&issuer, folder.path())?;
        let cluster = Cluster::start(Wish { environment, ..Wish::default() })?;
        let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
        cluster.cli(&[&add[..], &["--endpoint", &proxy.endpoint()]].concat())?.ok()?;
        Ok((Self { service, cluster, proxy, bucket, issuer, folder }, first))
    }

    /// Imports and reads what is in the bucket, and exports a file that goes by parts. All of it is
    /// signed with these keys.
    fn works(&self, round: usize, keys: &TemporaryKeys) -> Result<()> {
        for asked in REQUESTS {
            drop(self.proxy.signers(asked));
        }
        let root = self.cluster.mount().join("set");
        let (there, made) = (bytes(20_000_000, round), bytes(33_333_333, round));
        self.bucket.put(&format!("set/there-{round}"), &there)?;
        self.cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
        ensure!(fs::read(root.join(format!("there-{round}")))? == there, "read");
        fs::write(root.join(format!("made-{round}")), &made)?;
        self.cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
        ensure!(self.bucket.get(&format!("set/made-{round}"))? == made, "exported");
        for asked in REQUESTS {
            let signers = self.proxy.signers(asked);
            let ids: Vec<_> = signers.keys().collect();
            ensure!(ids == [&keys.id], "{asked:?} is signed with {signers:?}, not {}", keys.id);
        }
        Ok(())
    }

    /// Each host says in words who gives no keys, and nothing of them.
    fn is_told(&self, trouble: Trouble, words: &str) -> Result<()> {
        self.issuer.fail(Some(trouble));
        let said = self.cluster.cli(&["link", "check", "mr:/set"])?;
        let name = self.service.name(&self.issuer);
        ensure!(said.code == Some(1), "{trouble:?}: {said}");
        ensure!(said.stdout.matches(&name).count() == 3, "each host names {name}: {said}");
        ensure!(said.stdout.matches(words).count() == 3, "no {words:?} three times in: {said}");
        Ok(())
    }

    fn no_secret_is_told(&self, keys: &[&TemporaryKeys]) -> Result<()> {
        for daemon in ["metadata", "target-0", "target-1", "mount-0"] {
            let log = self.cluster.log(daemon);
            ensure!(!log.is_empty(), "{daemon} logs something");
            for keys in keys {
                ensure!(!log.contains(&keys.secret), "{daemon} tells a secret key");
                ensure!(!log.contains(&keys.token), "{daemon} tells a token");
            }
            ensure!(!log.contains(WEB_TOKEN), "{daemon} tells the web identity's token");
        }
        Ok(())
    }
}

fn keys_are_taken_missed_and_renewed(service: Service) -> Result<()> {
    let (world, first) = World::new(service)?;
    world.works(1, &first)?;

    let refused = match service {
        Service::Metadata => "it answers 404 Not Found",
        Service::Sts => "it answers 400 Bad Request (InvalidIdentityToken)",
    };
    world.is_told(Trouble::Unknown, refused)?;
    let other = world.cluster.mount().join("set/other");
    let denied = fs::read(&other).map_err(|error| error.kind());
    ensure!(denied == Err(io::ErrorKind::PermissionDenied), "{denied:?}");
    world.is_told(Trouble::Garbage, "what it answers is none")?;
    world.is_told(Trouble::Silence, "no credentials within 10 s from")?;
    world.issuer.fail(None);
    ensure!(fs::read(&other)? == b"other", "as soon as there are keys again");

    // What is given next counts for each request from now on, and for an hour.
    let second = world.bucket.temporary_keys()?;
    ensure!(first.id != second.id && first.secret != second.secret);
    let next_token = format!("next-{WEB_TOKEN}");
    fs::write(world.folder.path().join("web-token"), &next_token)?;
    world.issuer.take_token(&next_token);
    world.issuer.give(&second, Timestamp::now() + SignedDuration::from_hours(1));
    world.works(2, &second)?;
    let check = || world.cluster.cli(&["link", "check", "mr:/set"])?.ok();
    check()?;
    let given = world.issuer.given();
    world.works(3, &second)?;
    check()?;
    ensure!(world.issuer.given() == given, "nobody asks for keys that are valid");
    world.no_secret_is_told(&[&first, &second])
}

#[test]
fn keys_of_the_instance_metadata_service_are_taken_missed_and_renewed() -> Result<()> {
    keys_are_taken_missed_and_renewed(Service::Metadata)
}

#[test]
fn keys_of_a_web_identity_are_taken_missed_and_renewed() -> Result<()> {
    keys_are_taken_missed_and_renewed(Service::Sts)
}
