//! What a request is for, and the right that it takes: said where it is refused.

use http::Method;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    List,
    ListUploads,
    Read,
    Write,
    ListParts,
    Abort,
    Delete,
}

impl Purpose {
    /// Of a request to the bucket, or to a key in it.
    pub(super) fn of(method: &Method, key: Option<&str>, query: &[(&str, &str)]) -> Self {
        let has = |name: &str| query.iter().any(|(known, _)| *known == name);
        match *method {
            Method::GET if has("uploads") => Self::ListUploads,
            Method::GET if has("uploadId") => Self::ListParts,
            Method::GET | Method::HEAD if key.is_none() => Self::List,
            Method::GET | Method::HEAD => Self::Read,
            Method::DELETE if has("uploadId") => Self::Abort,
            Method::DELETE => Self::Delete,
            _ => Self::Write,
        }
    }

    /// In words, with the right by its name in policies.
    pub(super) fn needs(self) -> &'static str {
        match self {
            Self::List => "listing needs s3:ListBucket",
            Self::ListUploads => "listing uploads needs s3:ListBucketMultipartUploads",
            Self::Read => "reading needs s3:GetObject",
            Self::Write => "writing needs s3:PutObject",
            Self::ListParts => "listing an upload's parts needs s3:ListMultipartUploadParts",
            Self::Abort => "giving an upload up needs s3:AbortMultipartUpload",
            Self::Delete => "deleting needs s3:DeleteObject",
        }
    }
}

/// The right that a refusal itself says is missing: of an object that is encrypted with a key of
/// the cloud's, for example, not that of reading but the key's `kms:Decrypt`.
pub(super) fn told_right(message: &str) -> Option<&str> {
    let (_, told) = message.split_once("not authorized to perform: ")?;
    told.split_whitespace().next().filter(|right| right.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_takes_a_right_of_its_own() {
        let of = |method, key, name| Purpose::of(&method, key, &[(name, "x")]).needs();
        for (method, key, name, right) in [
            (Method::GET, None, "list-type", "s3:ListBucket"),
            (Method::GET, None, "uploads", "s3:ListBucketMultipartUploads"),
            (Method::GET, Some("k"), "", "s3:GetObject"),
            (Method::HEAD, Some("k"), "", "s3:GetObject"),
            (Method::GET, Some("k"), "uploadId", "s3:ListMultipartUploadParts"),
            (Method::PUT, Some("k"), "", "s3:PutObject"),
            (Method::PUT, Some("k"), "uploadId", "s3:PutObject"),
            (Method::POST, Some("k"), "uploads", "s3:PutObject"),
            (Method::DELETE, Some("k"), "uploadId", "s3:AbortMultipartUpload"),
            (Method::DELETE, Some("k"), "", "s3:DeleteObject"),
        ] {
            let needs = of(method.clone(), key, name);
            assert_eq!(needs.rsplit(' ').next(), Some(right), "{method} {name}");
        }
    }

    #[test]
    fn a_refusal_may_name_another_right() {
        let message = "User: arn:aws:iam::1:user/x is not authorized to perform: kms:Decrypt on \
                       the resource associated with this ciphertext";
        assert_eq!(told_right(message), Some("kms:Decrypt"));
        assert_eq!(told_right("Access Denied"), None);
    }
}
