//! What may be called on the word of a client: the open internet, and nothing that only we can reach
//! (A2A §13.2).

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Whether a URL is not one of this machine or a private network by its words alone.
pub(crate) fn names_public(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.');
    match host.parse::<IpAddr>() {
        Ok(ip) => is_public(ip),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            !host.is_empty() && host != "localhost" && !host.ends_with(".localhost")
        }
    }
}

/// Whether an address is one of the open internet.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            !(ip.is_private()
                || ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.is_documentation()
                || ip == Ipv4Addr::UNSPECIFIED
                || a == 0
                || a >= 240
                || (a == 100 && (64..128).contains(&b)) // RFC 6598
                || (a == 198 && (18..20).contains(&b)) // RFC 2544
                || (a == 192 && b == 0 && ip.octets().get(2) == Some(&0))) // RFC 6890
        }
        IpAddr::V6(ip) => {
            let first = ip.segments().first().copied().unwrap_or(0);
            // Global unicast is 2000::/3; of it 2001:db8::/32 documents, and 2002::/16 and 64:ff9b::/96
            // carry IPv4 addresses that would have to be looked at in turn.
            first & 0xe000 == 0x2000
                && first != 0x2002
                && !(first == 0x2001 && ip.segments().get(1) == Some(&0x0db8))
                && ip != Ipv6Addr::LOCALHOST
        }
    }
}

/// Looks names up and takes only addresses of the open internet: the address that was checked is
/// the one that is called.
pub(crate) struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|at| is_public(at.ip())).collect();
            if public.is_empty() {
                return Err("it is on this machine or in a private network".into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_only_we_can_reach_are_not_public() {
        for private in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        let names = |url: &str| names_public(&url.parse().unwrap());
        for private in [
            "http://localhost/",
            "http://LOCALHOST:1/",
            "http://a.localhost/",
            "http://localhost./",
            "http://127.1/",
            "http://[::1]/",
            "http://0x7f000001/",
            "http://2130706433/",
        ] {
            assert!(!names(private), "{private}");
        }
        assert!(names("https://example.org/hook"));
    }

    #[tokio::test]
    async fn a_name_of_this_machine_is_not_called() {
        let error = PublicOnly.resolve("localhost".parse().unwrap()).await;
        assert!(error.is_err());
    }
}
