use super::*;
use bytes::Bytes;
use proto::id::ObligationId;
use proto::record::cell_key;
use proto::time::Time;
use proto::weight::Weight;
use std::collections::BTreeMap;

#[derive(Default)]
struct Cells(Option<BTreeMap<Bytes, Bytes>>);

impl Read for Cells {
    fn get(&self, _: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let cells = self.0.as_ref().ok_or_else(|| ReadError("disk gone".into()))?;
        Ok(cells.get(key).cloned())
    }
    fn scan(&self, _: Table, from: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let cells = self.0.as_ref().ok_or_else(|| ReadError("disk gone".into()))?;
        let from = Bytes::copy_from_slice(from);
        Ok(cells
            .range(from..)
            .take(limit)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }
    fn last(&self, _: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        Ok(None)
    }
}

fn cells() -> Cells {
    let mut cells = BTreeMap::new();
    let mut put = |role, agent: &str, key: &str, value| {
        let (agent, key) = (AgentId::new(agent).unwrap(), GovernedKey::new(key).unwrap());
        let cell = Cell {
            value,
            sequence: Some(3),
            obligation_id: ObligationId::new("ob").unwrap(),
            num: 0,
            at: Time::from_ms(1),
        };
        let kind = Kind::new("anumati.consent").unwrap();
        cells.insert(cell_key(role, &agent, &kind, &key), cell.encode());
    };
    let granted = |granted| CellValue::Authorization { granted };
    for n in 0..50 {
        put(Role::Principal, "a", &format!("scope-{n:02}"), granted(n % 2 == 0));
    }
    put(Role::Principal, "ab", "scope-00", granted(true));
    put(Role::Receiver, "a", "scope-00", granted(false));
    put(Role::Receiver, "a", "scope-01", granted(true));
    put(Role::Receiver, "a", "routing.x", CellValue::Weight(Weight::from_f64(0.25).unwrap()));
    Cells(Some(cells))
}

fn page(store: &dyn Read, query: &str) -> Page<AuthorizationView> {
    let uri = format!("/?{query}").parse().unwrap();
    let axum::extract::Query(params) = axum::extract::Query::try_from_uri(&uri).unwrap();
    list(store, &params, |role, agent, kind, key, cell| match cell.value {
        CellValue::Authorization { granted } => Some(AuthorizationView {
            role: role.into(),
            agent: agent.into(),
            kind: kind.into(),
            scope: key.into(),
            allowed: granted,
            origin: cell.into(),
        }),
        CellValue::Weight(_) => None,
    })
    .unwrap()
}

#[test]
fn pages_add_up_to_the_whole() {
    let store = cells();
    for limit in [1, 7, 31, 32, 33, 51, 53, 100] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = page(&store, &format!("limit={limit}{after}"));
            assert!(page.items.len() <= limit);
            seen.extend(
                page.items
                    .into_iter()
                    .map(|item| (format!("{:?}", item.role), item.agent, item.scope)),
            );
            let Some(next) = page.next else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen.len(), 53, "limit {limit}");
        assert!(seen.is_sorted() && seen.windows(2).all(|pair| pair[0] != pair[1]));
    }
    assert_eq!(page(&store, "agent=a&role=receiver").items.len(), 2);
    assert_eq!(page(&store, "agent=a").items.len(), 52, "not of agent ab");
    assert_eq!(page(&store, "role=principal").items.len(), 51);
}

#[test]
fn a_check_fails_closed() {
    let ask = |store: &Cells, agent: &str, scope: &str, role| {
        let kinds = [Kind::new("oauth.token").unwrap(), Kind::new("anumati.consent").unwrap()];
        let params = CheckParams { agent: agent.into(), scope: scope.into(), kind: None, role };
        check_kinds(store, &params, &kinds)
    };
    let store = cells();
    let answer = |agent, scope, role| {
        ask(&store, agent, scope, role).map(|view| (view.allowed, view.why)).unwrap()
    };
    assert_eq!(answer("a", "scope-01", None), (true, "granted"));
    assert_eq!(answer("a", "scope-00", None), (false, "withheld"));
    assert_eq!(answer("a", "scope-00", Some(RoleView::Principal)), (true, "granted"));
    assert_eq!(answer("a", "scope-02", None), (false, "unknown"));
    assert_eq!(answer("b", "scope-01", None), (false, "unknown"));
    assert_eq!(answer("a", "routing.x", None), (false, "not_an_authorization"));
    assert_eq!(ask(&store, "a", " ", None).unwrap_err().status(), StatusCode::BAD_REQUEST);
    let gone = ask(&Cells(None), "a", "scope-01", None).unwrap_err();
    assert_eq!(gone.status(), StatusCode::SERVICE_UNAVAILABLE);
}
