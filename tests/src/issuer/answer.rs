//! What is asked for, and what it comes to.

use super::{ROLE, Shared, State, Trouble, serve::Request};

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

fn answer(status: u16, body: impl Into<String>) -> Option<Answer> {
    Some(Answer { status, body: body.into() })
}

/// The longest that a session of the metadata service may be asked for, in seconds.
const SESSION_SECONDS_MAX: u64 = 21_600;

impl Shared {
    /// The instance metadata service; no answer where it is to say nothing.
    pub(super) fn metadata(&self, request: &Request) -> Option<Answer> {
        let mut state = self.state();
        if request.method == "PUT" && request.path == "/latest/api/token" {
            let told = request.header("x-aws-ec2-metadata-token-ttl-seconds");
            let seconds = told.and_then(|told| told.parse().ok()).unwrap_or(0);
            return match (1..=SESSION_SECONDS_MAX).contains(&seconds) {
                true => answer(200, state.begin_session()),
                false => answer(400, "a session needs a time"),
            };
        }
        if !request.header("x-aws-ec2-metadata-token").is_some_and(|told| state.knows(told)) {
            return answer(401, "Unauthorized");
        }
        let role = request.path.strip_prefix("/latest/meta-data/iam/security-credentials/");
        match (request.method.as_str(), role, state.trouble) {
            ("GET", Some(""), None | Some(Trouble::Garbage)) => answer(200, "worker"),
            ("GET", Some("worker"), None) => answer(200, state.document()),
            // A string in which a key is: what a parser says of it may quote it.
            ("GET", Some("worker"), Some(Trouble::Garbage)) => {
                answer(200, format!("{:?}", state.secret()))
            }
            ("GET", Some(_), Some(Trouble::Silence)) => None,
            _ => answer(404, "<html><title>404 - Not Found</title></html>"),
        }
    }

    /// STS; no answer where it is to say nothing.
    pub(super) fn sts(&self, request: &Request) -> Option<Answer> {
        let mut state = self.state();
        let is = |name: &str, value: &str| request.parameter(name) == Some(value);
        let names_session =
            request.parameter("RoleSessionName").is_some_and(|name| name.len() >= 2);
        let is_asked = request.method == "POST"
            && is("Action", "AssumeRoleWithWebIdentity")
            && is("Version", "2011-06-15");
        if !is_asked || !names_session {
            return refusal("ValidationError", "no such action");
        }
        match state.trouble {
            Some(Trouble::Silence) => return None,
            // As AWS wraps it, with a text where there is to be a structure.
            Some(Trouble::Garbage) => {
                let inner = format!("<Credentials>{}</Credentials>", state.secret());
                return answer(200, response(&inner));
            }
            Some(Trouble::Unknown) | None => {}
        }
        if state.trouble.is_some() || !is("WebIdentityToken", &state.token) {
            // Its sentences may quote what came.
            let came = request.parameter("WebIdentityToken").unwrap_or_default();
            return refusal("InvalidIdentityToken", &format!("nobody knows the token {came}"));
        }
        if !is("RoleArn", ROLE) {
            return refusal("AccessDenied", "not authorized to take this role");
        }
        answer(200, state.session_credentials())
    }
}

impl State {
    fn begin_session(&mut self) -> String {
        self.sessions += 1;
        format!("session-{}", self.sessions)
    }

    fn knows(&self, session: &str) -> bool {
        let number = session.strip_prefix("session-").and_then(|number| number.parse().ok());
        number.is_some_and(|number: u64| (1..=self.sessions).contains(&number))
    }

    fn secret(&self) -> &str {
        self.keys.as_ref().map_or("", |(keys, _)| keys.secret.as_str())
    }

    /// The credentials of a role, as the metadata service tells them.
    fn document(&mut self) -> String {
        self.given += 1;
        let Some((keys, expiration)) = &self.keys else { return String::new() };
        let document = serde_json::json!({
            "Code": "Success",
            "LastUpdated": "2026-11-24T11:45:59Z",
            "Type": "AWS-HMAC",
            "AccessKeyId": keys.id,
            "SecretAccessKey": keys.secret,
            "Token": keys.token,
            "Expiration": expiration.to_string(),
        });
        document.to_string()
    }

    /// The same as STS tells them.
    fn session_credentials(&mut self) -> String {
        self.given += 1;
        let Some((keys, expiration)) = &self.keys else { return String::new() };
        response(&format!(
            "<SubjectFromWebIdentityToken>worker</SubjectFromWebIdentityToken>\
             <Credentials><SessionToken>{}</SessionToken>\
             <SecretAccessKey>{}</SecretAccessKey><Expiration>{expiration}</Expiration>\
             <AccessKeyId>{}</AccessKeyId></Credentials>",
            keys.token, keys.secret, keys.id
        ))
    }
}

fn response(result: &str) -> String {
    format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult>{result}</AssumeRoleWithWebIdentityResult>\
         <ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>\
         </AssumeRoleWithWebIdentityResponse>"
    )
}

fn refusal(code: &str, message: &str) -> Option<Answer> {
    let error = format!("<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>");
    answer(400, format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"))
}
