/* Draws the charts of a report from the numbers in #data. Every number is in a table of the page too. */
(function () {
    'use strict';

    var data = JSON.parse(document.getElementById('data').textContent);
    var kinds = data.kinds;
    var colours = ['#a77bb5', '#8c6d5a', '#e8a33d', '#3b73b9', '#4fa3a5', '#c9b458', '#5a9e55', '#d98aa6', '#d4553f',
        '#9aa3ad', '#6b7f99'];
    var charts = [];
    var chosen = { cut: 0, log: 0 };

    function style(name) {
        return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }

    function ms(v) {
        return (Math.abs(v) >= 10 ? v.toFixed(1) : Math.abs(v) >= 0.1 ? v.toFixed(2) : v.toFixed(3)) + ' ms';
    }

    function percent(v) {
        return (100 * v).toFixed(v < 0.1 ? 1 : 0) + ' %';
    }

    function sum(list) {
        return list.reduce(function (a, b) { return a + b; }, 0);
    }

    function axis(title, more) {
        return Object.assign({
            title: { display: true, text: title, color: style('--soft') },
            ticks: { color: style('--soft'), maxRotation: 0, precision: more && more.whole ? 0 : undefined },
            grid: { color: style('--line'), drawBorder: false }
        }, more || {});
    }

    /* options: type, data, scales, tip(item) -> text, title(items) -> text */
    function draw(id, o) {
        var canvas = document.getElementById(id);

        if (!canvas)
            return;
        charts.push(new Chart(canvas, {
            type: o.type,
            data: o.data,
            options: {
                animation: false,
                responsive: true,
                maintainAspectRatio: false,
                indexAxis: o.flat ? 'y' : 'x',
                interaction: o.together ? { mode: 'index', intersect: false } : { mode: 'nearest', intersect: true },
                scales: o.scales,
                plugins: {
                    legend: {
                        display: !!o.legend,
                        position: 'bottom',
                        labels: { color: style('--ink'), boxWidth: 12 }
                    },
                    tooltip: {
                        filter: o.filter,
                        callbacks: { label: o.tip, title: o.title || function () { return ''; } }
                    }
                }
            }
        }));
    }

    function key(id, used) {
        var to = document.getElementById(id);

        if (!to)
            return;
        to.textContent = '';
        kinds.forEach(function (p, i) {
            var item, box;

            if (!used[i])
                return;
            item = document.createElement('span');
            box = document.createElement('i');
            box.style.background = colours[i];
            item.title = p.help;
            item.appendChild(box);
            item.appendChild(document.createTextNode(p.name));
            to.appendChild(item);
        });
    }

    function parts() {
        var used = kinds.map(function (p, i) {
            return data.logs.some(function (l) { return (l.parts[i] || 0) > 0.002 * sum(l.parts); });
        });

        key('parts-key', used);
        draw('parts', {
            type: 'bar', flat: true,
            data: {
                labels: data.logs.map(function (l) { return l.label; }),
                datasets: kinds.map(function (p, i) {
                    return {
                        label: p.name, backgroundColor: colours[i], barPercentage: 0.8, categoryPercentage: 0.9,
                        data: data.logs.map(function (l) { return l.parts[i] || 0; })
                    };
                })
            },
            scales: { x: axis('milliseconds a round', { stacked: true }),
                y: axis('', { stacked: true, grid: { display: false } }) },
            title: function (items) { return items[0].label; },
            tip: function (item) {
                var all = sum(data.logs[item.dataIndex].parts);

                return item.dataset.label + ': ' + ms(item.raw) + ' (' + percent(item.raw / all) + ')';
            }
        });
    }

    function timeline() {
        var cut = data.cuts[chosen.cut];
        var used = [];

        if (!cut)
            return;
        document.getElementById('cut-note').textContent = cut.note;
        cut.segs.forEach(function (s) { used[s[1]] = true; });
        key('cut-key', used);
        draw('cut', {
            type: 'bar', flat: true,
            data: {
                labels: cut.lanes,
                datasets: kinds.map(function (p, i) {
                    return {
                        label: p.name, backgroundColor: colours[i], grouped: false, barPercentage: 0.85,
                        categoryPercentage: 0.9, borderSkipped: false, minBarLength: 1,
                        borderColor: style('--card'), borderWidth: { left: 0.5, right: 0, top: 0, bottom: 0 },
                        data: cut.segs.filter(function (s) { return s[1] === i; }).map(function (s) {
                            return { y: cut.lanes[s[0]], x: [s[2], s[3]], round: s[4] };
                        })
                    };
                })
            },
            scales: {
                x: axis('milliseconds', { type: 'linear', min: 0, max: cut.end }),
                y: axis('', { grid: { display: false } })
            },
            title: function (items) { return 'round ' + items[0].raw.round + ', ' + items[0].raw.y; },
            tip: function (item) { return item.dataset.label + ': ' + ms(item.raw.x[1] - item.raw.x[0]); }
        });
    }

    /* [[x, y]...] of one series over the run */
    function points(log, values) {
        return values.map(function (v, i) { return { x: log.rounds[i], y: v }; });
    }

    function over() {
        var log = data.logs[chosen.log];
        var used = kinds.map(function (p, i) { return (log.parts[i] || 0) > 0.002 * sum(log.parts); });
        var series = kinds.map(function (p, i) {
            return {
                label: p.name, backgroundColor: colours[i], borderColor: colours[i], borderWidth: 0, pointRadius: 0,
                fill: i === 0 ? 'origin' : '-1', stack: 'parts', data: points(log, log.over[i] || [])
            };
        }).filter(function (s, i) { return log.over[i]; });

        key('over-key', used);
        if (log.each > 1)
            series.push({
                label: 'slowest of ' + log.each + ' rounds', borderColor: style('--ink'), borderWidth: 1, pointRadius: 0,
                fill: false, stack: 'slowest', data: points(log, log.slowest)
            });
        draw('over', {
            type: 'line', together: true,
            data: { datasets: series },
            scales: {
                x: axis('round number', { whole: true, type: 'linear', min: log.rounds[0], max: log.rounds[log.rounds.length - 1] }),
                y: axis('milliseconds a round', { stacked: true, min: 0, max: log.scale })
            },
            filter: function (item) { return item.raw.y > 0.001; },
            title: function (items) { return items.length ? 'round ' + items[0].raw.x + ', second ' + log.seconds[items[0].dataIndex] : ''; },
            tip: function (item) { return item.dataset.label + ': ' + ms(item.raw.y); }
        });
    }

    function tokens() {
        var log = data.logs[0];

        draw('tokens', {
            type: 'line', together: true,
            data: { datasets: [{
                label: 'tokens a round', data: points(log, log.tokens), borderColor: colours[3], borderWidth: 1.5,
                pointRadius: log.rounds.length > 60 ? 0 : 2, stepped: log.each === 1 ? 'middle' : false
            }] },
            scales: {
                x: axis('round number', { whole: true, type: 'linear', min: log.rounds[0], max: log.rounds[log.rounds.length - 1] }),
                y: axis('tokens a round', { min: 0 })
            },
            title: function (items) { return items.length ? 'round ' + items[0].raw.x : ''; },
            tip: function (item) { return item.raw.y.toFixed(2) + ' tokens a round'; }
        });
    }

    function line_key(id, series) {
        var to = document.getElementById(id);

        if (!to)
            return;
        to.textContent = '';
        series.forEach(function (s) {
            var item = document.createElement('span'), box = document.createElement('i');

            box.className = 'line';
            box.style.borderTopColor = s.borderColor;
            box.style.borderTopStyle = s.borderDash ? 'dashed' : 'solid';
            item.appendChild(box);
            item.appendChild(document.createTextNode(s.label));
            to.appendChild(item);
        });
    }

    function exchanges() {
        var tones = ['#d4553f', '#3b73b9', '#5a9e55', '#a77bb5'];
        var series = [], last = 1;

        data.logs.forEach(function (l, i) {
            last = Math.max(last, l.rounds[l.rounds.length - 1] || 0);
            series.push({ label: l.label + ' waits', data: points(l, l.waits), borderColor: tones[i % 4], borderWidth: 1.5,
                pointRadius: 0 });
            series.push({ label: l.label + ' moves', data: points(l, l.moves), borderColor: tones[i % 4], borderWidth: 1.5,
                borderDash: [4, 3], pointRadius: 0 });
        });
        line_key('exchanges-key', series);
        draw('exchanges', {
            type: 'line', together: true,
            data: { datasets: series },
            scales: { x: axis('round number', { whole: true, type: 'linear', min: 0, max: last }),
                y: axis('milliseconds a round', { min: 0 }) },
            title: function (items) { return items.length ? 'round ' + items[0].raw.x : ''; },
            tip: function (item) { return item.dataset.label + ': ' + ms(item.raw.y); }
        });
    }

    function acceptance() {
        var a = data.accept;

        draw('accept', {
            type: 'bar', legend: true,
            data: {
                labels: a.tries.map(function (n, j) { return j + 1; }),
                datasets: [
                    { label: 'right, if all before it were', data: a.hits.map(function (h, j) { return h / a.tries[j]; }),
                        backgroundColor: colours[3] },
                    { label: 'right, of all windows that deep', data: a.hits.map(function (h, j) { return h / a.deep[j]; }),
                        backgroundColor: colours[4] }
                ]
            },
            scales: { x: axis('draft position', { grid: { display: false } }), y: axis('share', { min: 0, max: 1 }) },
            title: function (items) { return 'draft ' + items[0].label; },
            tip: function (item) {
                var of = item.datasetIndex === 0 ? a.tries : a.deep;

                return item.dataset.label + ': ' + percent(item.raw) + ' (' + a.hits[item.dataIndex] + ' of ' +
                    of[item.dataIndex] + ')';
            }
        });
    }

    function depth() {
        var all = sum(data.depth);

        draw('depth', {
            type: 'bar',
            data: {
                labels: data.depth.map(function (n, k) { return k; }),
                datasets: [{ data: data.depth.map(function (n) { return n / all; }), backgroundColor: colours[6] }]
            },
            scales: { x: axis('drafts verified in a window', { grid: { display: false } }),
                y: axis('share of windows', { min: 0 }) },
            title: function (items) { return items[0].label + ' drafts'; },
            tip: function (item) { return percent(item.raw) + ' (' + data.depth[item.dataIndex] + ' windows)'; }
        });
    }

    function chances() {
        var all = sum(data.tenths.map(function (t) { return t[2]; }));

        draw('chances', {
            type: 'scatter',
            data: { datasets: [
                { data: data.tenths.map(function (t) { return { x: t[0], y: t[1], n: t[2] }; }),
                    backgroundColor: colours[3], clip: false,
                    pointRadius: data.tenths.map(function (t) { return 4 + 12 * Math.sqrt(t[2] / all); }),
                    pointHoverRadius: data.tenths.map(function (t) { return 5 + 12 * Math.sqrt(t[2] / all); }) },
                { type: 'line', data: [{ x: 0, y: 0 }, { x: 1, y: 1 }], borderColor: style('--soft'), borderWidth: 1,
                    borderDash: [5, 4], pointRadius: 0, pointHitRadius: 0 }
            ] },
            scales: { x: axis('chance that the drafter gave', { min: 0, max: 1 }),
                y: axis('share that came true', { min: 0, max: 1 }) },
            filter: function (item) { return item.datasetIndex === 0; },
            tip: function (item) {
                return 'given ' + percent(item.raw.x) + ', came true ' + percent(item.raw.y) + ' (' + item.raw.n + ' drafts)';
            }
        });
    }

    function tabs(id, names, what) {
        var to = document.getElementById(id);

        if (!to)
            return;
        to.textContent = '';
        if (names.length < 2)
            return;
        names.forEach(function (name, i) {
            var b = document.createElement('button');

            b.type = 'button';
            b.textContent = name;
            b.setAttribute('aria-pressed', String(chosen[what] === i));
            b.addEventListener('click', function () {
                chosen[what] = i;
                all();
            });
            to.appendChild(b);
        });
    }

    function all() {
        charts.forEach(function (c) { c.destroy(); });
        charts = [];
        Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
        tabs('cut-tabs', data.cuts.map(function (c) { return c.title; }), 'cut');
        tabs('over-tabs', data.logs.map(function (l) { return l.label; }), 'log');
        parts();
        timeline();
        over();
        tokens();
        exchanges();
        acceptance();
        depth();
        chances();
    }

    if (!data.logs.length || !data.logs[0].rounds.length)
        return;
    all();
    window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', all);
}());
