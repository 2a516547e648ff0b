//! Links over plain HTTP: what nobody notices there, said to who makes or checks one.

use std::net::IpAddr;

use millrace_protocol::cluster::Bucket;

use crate::{output::shown, watch::say};

/// Says it of a bucket whose link names an endpoint without TLS on another host. What a daemon's
/// own environment names is not known here.
pub(super) fn warn(bucket: &Bucket) {
    if let Some(words) = words(bucket) {
        say(&words);
    }
}

fn words(bucket: &Bucket) -> Option<String> {
    let endpoint = bucket.endpoint.as_deref()?;
    let is_open = is_plain_and_elsewhere(endpoint);
    is_open.then(|| {
        format!(
            "{}: {} is plain HTTP: what is damaged or changed on the way is noticed in objects up \
             to 1 MiB at most; use https:// where the network is not yours alone",
            shown(&bucket.url),
            shown(endpoint)
        )
    })
}

/// Whether bytes from there cross a network without TLS.
fn is_plain_and_elsewhere(endpoint: &str) -> bool {
    let Some((scheme, rest)) = endpoint.split_once("://") else { return false };
    let authority = rest.split('/').next().unwrap_or(rest);
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    let is_here = match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    };
    scheme.eq_ignore_ascii_case("http") && !is_here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_from_another_host_is_told_and_nothing_else() {
        let words = |endpoint: Option<&str>| {
            let endpoint = endpoint.map(str::to_owned);
            words(&Bucket { url: "s3://b/p".into(), endpoint, region: None, credentials: None })
        };
        for open in ["http://store:9000", "HTTP://10.0.0.7/", "http://[fd00::7]:80", "http://s"] {
            let told = words(Some(open)).unwrap();
            assert!(told.starts_with(&format!("s3://b/p: {open} is plain HTTP")), "{told}");
            assert!(told.contains("https://"), "{told}");
        }
        for fine in
            ["https://store", "http://127.0.0.1:8333", "http://[::1]:80", "http://localhost"]
        {
            assert_eq!(words(Some(fine)), None, "{fine}");
        }
        assert_eq!(words(None), None);
    }
}
